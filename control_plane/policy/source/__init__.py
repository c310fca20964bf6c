"""Sources of policy: a folder or a git repository, which is polled periodically and after webhook deliveries."""
