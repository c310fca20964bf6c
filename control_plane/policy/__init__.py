"""Policy bundles: YAML files that are checked as a whole and compiled to `penstock.policy.policy.Policy`."""
