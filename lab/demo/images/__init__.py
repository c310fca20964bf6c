"""Image jobs of the demo: their workload, their outcomes, and the work that agents accounted."""
