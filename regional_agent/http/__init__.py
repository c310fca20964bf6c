"""HTTP/1.1 from clients on asyncio protocols: listeners, connections, TLS, limits."""
