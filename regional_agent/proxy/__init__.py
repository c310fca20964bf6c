"""Proxying of requests: exchanges, retries, error responses, and accounts of finished requests."""
