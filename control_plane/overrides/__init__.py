"""What operators want, kept in the store: judged and written in one step, seen by every control plane."""
