"""A wide-area network on one machine: TCP listeners that forward with the round trips and faults of real distances."""
