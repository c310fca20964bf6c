"""Overrides in the store: each change is checked and written in one transaction, and seen by every control plane."""
