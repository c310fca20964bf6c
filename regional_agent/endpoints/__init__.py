"""The region's endpoints: where they are listed, their probes, signals and pools."""
