"""Records that show later changes: the chains of access logs and of the audit log, and the proof of residency. Pure."""
