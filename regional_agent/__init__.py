"""The daemon in front of one cluster's GPUs: carries requests, watches endpoints, obeys the plan, reports upward."""
