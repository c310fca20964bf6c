"""Benchmarks. Each prints a table and writes a JSON file."""
