"""Routes of the HTTP API, one module for each resource. Each module has a function `routes` that returns a router."""
