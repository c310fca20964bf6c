"""Overrides in the store: each change is checked and written in one transaction; every control plane mirrors them."""
