"""Leader election, and requests from followers to the leader."""
