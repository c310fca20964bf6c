"""The base of the structs of a policy."""

from __future__ import annotations

import msgspec


class PolicyStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of a policy. Unknown fields are rejected, because an unknown field could restrict the known
    ones."""
