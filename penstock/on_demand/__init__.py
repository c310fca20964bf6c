"""Models that are loaded on demand: how many endpoints are awake, what leaves a full memory, when attempts repeat."""
