"""The fleet that a signature is made for: the name in the certificates of its processes, and its etcd prefix (ADR 19).

One authority may certify several fleets, such as production and staging, so "signed by our authority" does not mean
"signed for this fleet". Every stored value and every message is signed for the name and the prefix of the fleet. In
earlier releases signatures covered neither; a process accepts such signatures only during the upgrade of its fleet,
until an hour after a stated time.
"""

from __future__ import annotations

DEFAULT_PREFIX = "/penstock/"
"""Prefix of every key in etcd, unless the settings name another prefix for a fleet."""

GRACE_S = 3600.0
"""Time (s) after `bound_from` in which the leader signs the stored values again, and the earlier form is accepted."""

MAX_AHEAD_S = 7 * 86_400.0
"""Maximum time (s) by which `bound_from` may be in the future at the start of a process."""


class FleetBinding:
    """What this process signs and accepts as its fleet's.

    Outside an upgrade every signature is bound to the fleet. During an upgrade the process accepts both forms, and
    signs the earlier form until `bound_from`, so that processes of the earlier release understand it.
    """

    __slots__ = ("accepts_earlier_form", "bound_from", "prefix", "signs_earlier_form")

    def __init__(self, prefix: str = DEFAULT_PREFIX, bound_from: float | None = None) -> None:
        """Describes the fleet with the keys under `prefix`.

        Args:
            bound_from: Unix time (s) at which an upgrade from a release without this binding is complete; None outside
                such an upgrade.
        """
        self.prefix = prefix
        self.bound_from = bound_from
        self.signs_earlier_form = self.accepts_earlier_form = bound_from is not None

    def advance(self, now: float) -> None:
        """Applies the time `now` (Unix time, s) to what is signed and accepted."""
        if self.bound_from is not None:
            self.signs_earlier_form = now < self.bound_from
            self.accepts_earlier_form = now < self.bound_from + GRACE_S
