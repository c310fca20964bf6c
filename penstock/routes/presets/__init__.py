"""Presets: the routes of known APIs, which a policy includes by name."""
