"""Policy as agents hold it: regions, models, tenants, residency classes, versions, geography."""
