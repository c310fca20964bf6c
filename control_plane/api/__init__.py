"""The HTTP API. `control_plane.api.app` assembles routers, error handlers and middleware."""
