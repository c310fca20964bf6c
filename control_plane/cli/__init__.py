"""The command `penstock`: connections to control planes, output and errors."""
