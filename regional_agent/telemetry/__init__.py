"""Metrics, counts of how requests ended, demand, and reports to the control plane."""
