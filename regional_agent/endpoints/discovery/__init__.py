"""Endpoints that a directory lists: DNS names, Kubernetes."""
