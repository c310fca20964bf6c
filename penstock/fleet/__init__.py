"""Reports of agents, the snapshot of the fleet, demand and capacity."""
