"""Deterministic simulations on a virtual clock: Penstock's decisions on the lab's engine model, without sockets."""
