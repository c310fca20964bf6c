"""Grafana dashboards and Prometheus rules as code; `python -m dashboards` writes what they generate."""
