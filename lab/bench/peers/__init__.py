"""Third-party proxies and routers, configured in front of the same endpoints as an agent, for comparison."""
