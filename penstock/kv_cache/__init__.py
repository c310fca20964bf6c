"""Contents of the KV caches of engines, by the events that the engines publish."""
