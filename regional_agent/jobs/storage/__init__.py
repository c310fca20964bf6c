"""The objects of the job store: files, batches, and access to them."""
