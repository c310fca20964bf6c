"""Other people's proxies and routers, set up in front of the same endpoints as an agent, to be compared with it."""
