"""The staged rollout of a policy: its state machine, its evidence, and the shadow plan."""
