"""Selects the region and the endpoint of a request, and explains the decision."""
