"""Checks every query of dashboards and rules on a Prometheus that scrapes a fleet through a surge and failures."""
