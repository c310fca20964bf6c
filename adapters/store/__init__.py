"""The configuration store: its contract, keys, codec, informer and leases."""
