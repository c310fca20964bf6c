"""IO that both daemons use: the configuration store, GeoIP, logs."""
