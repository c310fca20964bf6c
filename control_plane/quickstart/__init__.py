"""A region on one machine by one command: its policy, settings and certificates, and its processes."""
