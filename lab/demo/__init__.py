"""The story: a planet lives through a surge, the loss of a region and of its control plane, and a verdict is given."""
