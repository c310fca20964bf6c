"""What engines and GPUs report of themselves."""
