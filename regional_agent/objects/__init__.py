"""Locations of the objects that requests created, and the handling of requests for these objects."""
