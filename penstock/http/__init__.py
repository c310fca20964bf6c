"""The heads of HTTP messages, without IO: headers that pass, links, repeated heads, and how responses are read."""
