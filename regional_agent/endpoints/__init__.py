"""The region's endpoints: their sources, probes, load signals and pools."""
