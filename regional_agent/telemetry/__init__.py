"""Metrics, outcomes of requests, demand, traces, the access log, and reports to the control plane."""
