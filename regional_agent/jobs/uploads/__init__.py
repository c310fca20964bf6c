"""Uploads of files: forms, and the check of every line as it arrives."""
