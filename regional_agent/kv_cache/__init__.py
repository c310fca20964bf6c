"""Reads the KV events of engines, and asks engines for the tokens of prompts."""
