"""Recommends the number of endpoints of each region and the endpoints to drain, and computes the cost of a fleet."""
