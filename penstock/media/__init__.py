"""Inline images, audio and documents of requests: their number, size, and cost in tokens."""
