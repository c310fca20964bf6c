"""The HTTP API, one module a resource: each has `routes`, and `control_plane.api.app` puts them together."""
