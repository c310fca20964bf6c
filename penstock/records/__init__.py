"""Decision records: the chain of an access log, and the proof of residency from it. Pure."""
