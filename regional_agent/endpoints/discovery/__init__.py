"""Endpoints that a directory lists: DNS names, SRV records, Kubernetes."""
