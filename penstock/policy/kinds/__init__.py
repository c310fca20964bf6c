"""Fields of policy documents: one struct for each kind, in the module of its subject."""
