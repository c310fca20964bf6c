"""Bundles that take long to compile."""

from __future__ import annotations


def large_bundle(size: int = 3_000_000) -> dict[str, str]:
    """A bundle of `size` bytes of YAML; a megabyte takes about ten seconds to parse."""
    document = "apiVersion: penstock/v1\nkind: Tenant\nname: t\nx: [" + "a, " * 150 + "a]\n---\n"
    count = min(size, 1_000_000) // len(document)
    return {f"{number}.yaml": document * count for number in range(max(1, size // 1_000_000))}
