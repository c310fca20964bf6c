"""What the agent counts and reports for each endpoint."""
