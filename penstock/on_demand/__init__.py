"""Models that are loaded on demand: how many endpoints are awake, and when a failed attempt is repeated."""
