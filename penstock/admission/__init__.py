"""Quotas, the admission queue and its fair order among tenants, limits of connections, memory shares."""
