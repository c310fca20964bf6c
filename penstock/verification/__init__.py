"""Verifies a policy's residency and availability offline, with the functions that route live requests.

`verify.verify` is the entry point and lists the properties and their proofs. `situations` enumerates all requests that
the rules distinguish; `breach` is an independent evaluation of the rules, used as reference; `stages` checks each
stage of a decision; `plan_checks` checks the planners; `survival` removes regions; `policy_warnings` produces
warnings.
"""
