"""The daemon in front of one cluster's GPUs: carries requests, watches endpoints, applies the plan, reports upward."""
