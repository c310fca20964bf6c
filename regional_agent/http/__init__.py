"""HTTP/1.1 servers on asyncio protocols: listeners, connections, parsing, TLS, limits."""
