"""CPU and memory per request of the agent and of other proxies: `penstock-lab bench-router`."""
