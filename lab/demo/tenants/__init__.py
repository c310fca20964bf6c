"""The scene of tenants: a flood within its budget, a quiet tenant beside it, a revoked key, and the bill."""
