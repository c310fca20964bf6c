"""Spans of requests, and their export to an OpenTelemetry collector."""
