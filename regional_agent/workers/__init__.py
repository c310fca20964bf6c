"""Several worker processes on one host: one supervisor, one traffic port, each worker an agent of its own."""
