"""Several worker processes on one host: one supervisor, one traffic port, and each worker a separate agent."""
