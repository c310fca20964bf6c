"""Proxying of requests: exchanges, retries, error responses, tunnels, and the access log."""
