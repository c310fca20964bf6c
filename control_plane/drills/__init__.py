"""Drills on the live fleet: their records in the store, the leader's steps, and the reports of the API."""
