"""A load generator of others, NVIDIA's AIPerf, drives Penstock and other routers, and measures them."""
