"""The staged rollout of policy: what `penstock.rollout` decides, kept in the store and done by whoever leads."""
