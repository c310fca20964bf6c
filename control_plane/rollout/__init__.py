"""Staged policy rollouts: the state machine of `penstock.rollout.policy_rollout`, stored and driven by the leader."""
