"""The commands of `penstock-lab` that simulate."""
