"""Answers the queries of a PowerDNS beside the agent."""
