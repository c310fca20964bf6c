"""Deterministic simulations on a virtual clock: Penstock's decision code with the lab's engine model."""
