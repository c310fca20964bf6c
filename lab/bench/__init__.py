"""Benchmarks: what a thing costs at a stated size, as a table for people and a file for comparison."""
