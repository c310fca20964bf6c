"""Purges of the result cache."""
