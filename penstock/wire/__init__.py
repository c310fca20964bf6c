"""What agents sign and send to each other: signatures, route contexts, trace contexts, probes."""
