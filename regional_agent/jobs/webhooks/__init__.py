"""Webhooks of jobs: their keys, the sender, and one request."""
