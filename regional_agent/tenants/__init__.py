"""Tenants that the API creates, as this agent knows them: their keys, followed in the store and kept on disk."""
