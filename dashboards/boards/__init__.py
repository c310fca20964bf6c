"""The Grafana dashboards, one a file."""
