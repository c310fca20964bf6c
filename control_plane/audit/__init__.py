"""The audit log: every change with who made it and why, in a chain of hashes that nobody can mend unseen."""
