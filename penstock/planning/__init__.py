"""The traffic plan: planners, forecast, failover tables, and the limits on how fast a plan changes."""
