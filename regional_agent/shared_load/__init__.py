"""In-flight work and cached prefixes that the agents of a region share through Redis."""
