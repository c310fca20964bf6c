"""The commands of `penstock-lab`: options, their errors, and exit codes."""
