"""The staged rollout of policy: what `penstock.rollout.state_machine` decides, stored and carried out by the leader."""
