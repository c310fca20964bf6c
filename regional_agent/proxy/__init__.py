"""One proxied request: the exchange, its retries, its errors, tunnels, and the access log."""
