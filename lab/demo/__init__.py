"""The demo: runs a fleet through a surge, the loss of a region and of the control plane, and checks the outcome."""
