"""Requests that clients do not wait for on a connection: accepted, executed, and answered later."""
