"""Health of regions and endpoints: state machines, outlier ejection, warm-up, and what engines report."""
