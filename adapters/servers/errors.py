"""Errors of server processes. Each message states the remedy."""

from __future__ import annotations


class ServerError(Exception):
    """A server program cannot be found, started or reached."""


class MissingBinary(ServerError):
    """A program is not installed; the message names the package to install."""


class PortTaken(ServerError):
    """Another process listens on the port of the server."""


class NotReady(ServerError):
    """The server exited early or did not become ready in time; the message ends with the last lines of its log."""
