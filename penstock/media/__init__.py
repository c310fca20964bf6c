"""Inline images, audio and documents of requests: how many there are, and what they cost."""
