"""Stores of the ledger's segments: a folder, or a bucket of an object store."""
