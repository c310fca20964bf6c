"""HTTP/1.1 servers on asyncio protocols: listeners, connections, request heads and bodies, TLS, limits."""
