"""Where policy comes from: a folder or a git repository, polled or announced by a webhook."""
