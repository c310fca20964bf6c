"""Responses that are kept for identical requests: which ones, under which key, and for how long."""
