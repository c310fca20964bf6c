"""Hash chains of logs, which show later changes: of access logs and the audit log; and the proof of residency. Pure."""
