"""Workloads: what was asked of a real service and when, read from public traces or generated in their likeness."""
