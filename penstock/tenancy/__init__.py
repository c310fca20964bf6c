"""Tenants that the API creates: their records, keys and effective rules; budgets and their leases."""
