"""The execution of batches under claims."""
