"""Workloads: arrival times and lengths of requests, read from public traces or generated to resemble them."""
