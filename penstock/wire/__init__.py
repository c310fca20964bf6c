"""Identities of the fleet's processes, and signed messages between them: route contexts, trace contexts, probes."""
