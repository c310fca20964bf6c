"""Versions of models in a rollout: their results, and copies of requests that a new version runs."""
