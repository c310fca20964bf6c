"""What the agent costs for a request, beside other people's proxies: `penstock-lab bench-router`."""
