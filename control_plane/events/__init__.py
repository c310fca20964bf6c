"""The event log, the journal in the store, and the detection of changes."""
