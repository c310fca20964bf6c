"""Commands that show the fleet as it is: status, top, endpoints, capacity."""
