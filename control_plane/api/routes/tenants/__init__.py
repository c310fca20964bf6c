"""Routes of tenants and of their API keys."""
