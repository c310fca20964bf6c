"""The status of the fleet, as the API returns it."""
