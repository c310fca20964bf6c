"""Drills on the live fleet: what the store has of them, the leader's steps, and the reports of the API."""
