"""The configuration store: its contract, keys, codec, informer, leases, and the store in memory."""
