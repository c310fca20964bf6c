"""The ledger: one record of usage per request, segments of records, and prices."""
