"""The HTTP services of an agent: traffic for clients, peer for agents of other regions, admin for operators."""
