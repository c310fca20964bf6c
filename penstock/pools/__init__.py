"""Accounts of the endpoints of a pool: reservations, and speeds learned from completions."""
