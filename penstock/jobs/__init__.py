"""Requests that can wait: files of requests, batches, and their states."""
