"""Targets of the decision code, measured on the virtual clock against baselines with paired seeds."""
