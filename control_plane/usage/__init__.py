"""Usage and bills: queries over the ledger's segments, statements, compaction and retention."""
