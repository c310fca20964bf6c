"""Other regions' agents: their addresses, probes and probe responses."""
