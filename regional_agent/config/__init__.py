"""Settings, the policy and plan in force, and the last-known-good copy on disk."""
