"""The policy bundle: YAML files that people write, checked whole and compiled to `penstock.policy.policy.Policy`."""
