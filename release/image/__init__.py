"""The container image: an OCI archive that is built without a daemon, without root, and with one digest."""
