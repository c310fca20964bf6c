"""Reads the KV events of engines, and requests the tokens of prompts from engines."""
