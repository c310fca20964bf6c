"""Load balancers for comparison with Penstock, implemented as their authors describe them."""
