"""Object stores, of the ledger's segments and of jobs: a folder, or a bucket."""
