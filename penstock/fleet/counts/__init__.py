"""What agents count for reports: results of requests, those of versions of models, sizes of messages."""
