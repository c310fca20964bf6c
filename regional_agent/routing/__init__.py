"""From a request that was read to its endpoint: quotas, the queue, the router, and attempts."""
