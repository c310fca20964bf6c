"""How many endpoints each region needs, which ones to drain, and what they cost."""
