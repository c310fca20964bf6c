"""Operators' overrides (drain, fail over, weight, freeze), maintenance windows, and guard rails."""
