"""IO that both daemons use: the configuration store, secret files, GeoIP, logs."""
