"""Callers, API keys and roles, and the limit of failed logins; used by both daemons."""
