"""Health of regions and endpoints: state machines, outlier ejection, warm-up, and the load signals of engines."""
