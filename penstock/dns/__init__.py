"""Answers DNS queries from the policy, the plan and the health of regions; explains and exports the answers."""
