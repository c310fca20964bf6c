"""The page for operators at `/ui`: static files, and sessions for browsers."""
