"""The audit log: every change with its caller and reason, in a tamper-evident chain of hashes."""
