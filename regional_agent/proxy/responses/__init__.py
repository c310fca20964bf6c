"""The response that a client receives: read, relayed, continued at another target, or a tunnel."""
