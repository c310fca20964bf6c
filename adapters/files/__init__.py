"""Configuration files that the daemons read again while they run: certificates, keys, secrets."""
