"""Authentication of callers of the API, and the roles that routes require."""
