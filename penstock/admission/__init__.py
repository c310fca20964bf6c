"""Quotas, queueing, fairness between agents, and the retry budget."""
