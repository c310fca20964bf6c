"""In-flight work shared by the agents of a region through Redis."""
