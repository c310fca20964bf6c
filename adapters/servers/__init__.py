"""Runs servers (etcd, Redis, Prometheus, Penstock's daemons) as child processes that do not outlive their parent."""
