"""The agent's part of the ledger: records in a spool on disk, and the child process that puts them into the store."""
