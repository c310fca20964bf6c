"""Who calls the API and what they may do: callers and roles, how they prove who they are, what routes require."""
