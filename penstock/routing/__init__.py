"""Selects the region and the endpoint of a request, estimates its cost, and explains the decision."""
