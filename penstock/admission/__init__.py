"""Quotas, the admission queue and its fair order among tenants, places of connections, memory shares, retry budget."""
