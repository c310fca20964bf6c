"""Image jobs of the demo: their workload, what became of them, and the work that agents accounted for them."""
