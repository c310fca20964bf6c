"""The prefix of a fleet in etcd, which every signature covers beside the fleet's name (ADR 19)."""

from __future__ import annotations

DEFAULT_PREFIX = "/penstock/"
"""Prefix of every key in etcd, unless the settings name another prefix for a fleet."""
