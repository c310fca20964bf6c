"""A whole planet on one machine: every region's processes, the network between them, and the power to kill them."""
