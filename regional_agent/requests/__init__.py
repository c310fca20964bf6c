"""Reads requests: who sends them, from where, for which model, and what they will cost."""
