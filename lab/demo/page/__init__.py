"""The report as a self-contained HTML page: a map with playback, a timeline, tables of flows, and the checks."""
