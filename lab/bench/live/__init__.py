"""What choosing well does for tail latency and engine use, beside other people's balancers: `penstock-lab bench-live`."""
