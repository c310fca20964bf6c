"""Evaluation of proposed policies in separate processes: validation and what-if."""
