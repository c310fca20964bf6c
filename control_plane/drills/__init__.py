"""Drills on the live fleet: their records in the store, the leader's steps, and what the API shows of them."""
