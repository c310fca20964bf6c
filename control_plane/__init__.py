"""The brain: aggregates what regions report, plans for the planet, and publishes the plan through etcd."""
