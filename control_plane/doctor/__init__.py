"""`penstock doctor`: checks of a fleet and of a host, each with what to do."""
