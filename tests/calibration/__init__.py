"""Compares the simulator with what `bench-live` measured: `make calibrate`."""
