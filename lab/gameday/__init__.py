"""Game days: inject one fault at a time into a running fleet under load, and check the expected outcome."""
