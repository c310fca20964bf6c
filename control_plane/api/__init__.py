"""The HTTP API, one module a resource: each has `routes`, and `control_plane.app` puts them together."""
