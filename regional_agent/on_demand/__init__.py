"""Wakes endpoints when requests need their models, and lets them sleep when no request does."""
