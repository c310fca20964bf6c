"""Meters of requests: plain numbers that are counted as requests end, and read for metrics and reports."""
