"""The account of a request: how it ended, whose fault it was, and what it used. Everything else reads the account."""
