"""The compiled policy: regions, models, tenants, residency classes, versions, geography."""
