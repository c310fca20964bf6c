"""The ledger: records of requests and of GPU time, segments of records, and prices."""
