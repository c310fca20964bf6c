"""Evaluation of proposed policies in processes of their own: validation and what-if."""
