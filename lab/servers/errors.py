"""Errors of server processes; each message contains the remedy."""

from __future__ import annotations


class ServerError(Exception):
    """A server process could not be found, started or reached."""


class MissingBinary(ServerError):
    """No such program on this machine; the message names what to install."""


class PortTaken(ServerError):
    """The server ended because another process listens on its port."""


class NotReady(ServerError):
    """The server ended early or did not answer in time; the message ends with the last lines of its log."""
