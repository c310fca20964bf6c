"""The simulation commands of `penstock-lab`."""
