"""Keeps the names of the policy up to date in DNS servers of others: dynamic updates and files."""
