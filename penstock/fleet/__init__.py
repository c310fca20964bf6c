"""What agents report, the snapshot of the fleet, demand and capacity."""
