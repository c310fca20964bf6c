"""Tail latency and engine use of Penstock and of other load balancers: `penstock-lab bench-live`."""
