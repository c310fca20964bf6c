"""The container image: an OCI archive that is built without a daemon, without root, and with one digest."""

EXTRAS = "jobs,kv-events,usage"
"""All extras that a production daemon may need: the root file system is read-only, so that none can be added."""
