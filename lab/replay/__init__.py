"""An open-loop load generator for many client sites: sends each request at its due time and records the outcome."""
