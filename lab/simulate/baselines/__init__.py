"""Load balancers as their authors describe them, which the simulator compares with Penstock."""
