"""The operator's command line, `penstock`: connections to control planes, output, and errors."""
