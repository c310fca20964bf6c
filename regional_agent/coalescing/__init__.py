"""Identical requests in flight that share one engine run."""
