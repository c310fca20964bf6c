"""Headers: which ones pass, which ones change, and heads that arrive again."""
