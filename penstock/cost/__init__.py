"""The cost of a request: its inputs, and an estimate before the request runs."""
