"""What the decisions must reach, measured on the virtual clock against baselines with paired seeds."""
