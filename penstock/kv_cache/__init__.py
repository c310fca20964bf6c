"""What the KV caches of engines hold, by the events that they publish."""
