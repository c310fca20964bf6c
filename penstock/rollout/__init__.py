"""Staged rollouts of policies and of versions of models: state machines, evidence, and the shadow plan."""
