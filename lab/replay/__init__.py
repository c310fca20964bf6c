"""An open-loop client of many sites: sends each request when it is due and records its outcome."""
