"""The HTTP protocol of client connections, without IO: no module here imports asyncio, or opens a socket."""
