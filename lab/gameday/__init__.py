"""Game days: one fault at a time on a running fleet, each with an expected outcome that is checked."""
