"""Mutation runs: break a rule or a tuned constant of the decision core, and see whether a test fails."""
