"""What choosing well does for tails and engine use, beside other people's balancers: `penstock-lab bench-live`."""
