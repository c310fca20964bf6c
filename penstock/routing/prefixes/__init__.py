"""Beginnings of prompts in the caches of regions: what regions publish of them, and what they spare requests."""
