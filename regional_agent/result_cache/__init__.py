"""Kept responses of deterministic requests, in the memory of the agent and in the region's Redis."""
