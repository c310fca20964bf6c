"""Tenants: the revocation of their API keys."""
