"""Continuation of a streamed answer at another endpoint, after the endpoint or region that generated it failed."""
