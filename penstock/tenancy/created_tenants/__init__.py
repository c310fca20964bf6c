"""Created tenants: their changes, the combination of states, and the tenant that requests see."""
