"""Evaluates a demand under a policy: share served and rejected, round trips, waits and cost."""
