"""Routes of rollouts: of policies, and of versions of models."""
