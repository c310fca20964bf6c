"""The APIs of files and batches for clients."""
