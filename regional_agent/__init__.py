"""The regional agent: the daemon that proxies requests to a region's endpoints, applies the plan and sends reports."""
