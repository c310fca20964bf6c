"""Settings of a daemon: from flags, the environment and one YAML file, with the origin of each value."""
