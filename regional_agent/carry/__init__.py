"""Carrying: HTTP/1.1 in and out on plain asyncio protocols, streaming both ways with back-pressure."""
