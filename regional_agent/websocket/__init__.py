"""WebSockets: their offer, their frames, the messages of clients, and the tunnel to an engine."""
