"""Leadership of a control plane: its state machine, and when a leader gives way to another control plane."""
