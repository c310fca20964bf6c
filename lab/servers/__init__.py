"""Real servers (etcd, Redis, and Penstock's own daemons) as child processes that never outlive their parent."""
