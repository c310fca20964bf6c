"""Batches: their states, the lines of their files, and what APIs show of them."""
