"""Staged policy rollouts: the state machine of `penstock.rollout.state_machine`, stored and driven by the leader."""
