"""Jobs: the files and batches of the region's tenants in the job store, and the agent's part in running them."""
