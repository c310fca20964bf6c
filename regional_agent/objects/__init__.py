"""Where the objects are that requests created, and the requests for them."""
