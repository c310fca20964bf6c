"""Every query of dashboards and rules, on a real Prometheus that scrapes a fleet through surge and failures."""
