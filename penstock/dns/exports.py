"""Record sets in the formats of other programs: octoDNS (YAML of one zone) and ExternalDNS (`DNSEndpoint`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.dns.record_sets import NameRecords

MANAGED_BY = "penstock"


def octodns_zone(names: Iterable[NameRecords], zone: str) -> dict[str, Any]:
    """Return the content of an octoDNS zone file (https://octodns.readthedocs.io/en/latest/records.html)."""
    found: dict[str, Any] = {}
    for name in sorted(names, key=lambda each: each.name):
        if name.zone != zone or not name.record_sets:
            continue
        records = [
            {"type": each.kind, "ttl": name.ttl_s}
            | ({"value": each.values[0]} if each.kind == "CNAME" else {"values": list(each.values)})
            for each in name.record_sets
        ]
        found[name.name.removesuffix(f".{zone}")] = records[0] if len(records) == 1 else records
    return found


def dns_endpoint(names: Iterable[NameRecords], namespace: str) -> dict[str, Any]:
    """Return a manifest of ExternalDNS's custom resource
    (https://kubernetes-sigs.github.io/external-dns/latest/docs/sources/crd/)."""
    endpoints = [
        {
            "dnsName": name.name,
            "recordTTL": name.ttl_s,
            "recordType": each.kind,
            "targets": [value.removesuffix(".") for value in each.values],
        }
        for name in sorted(names, key=lambda each: each.name)
        for each in name.record_sets
    ]
    return {
        "apiVersion": "externaldns.k8s.io/v1alpha1",
        "kind": "DNSEndpoint",
        "metadata": {
            "name": "penstock",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY},
        },
        "spec": {"endpoints": endpoints},
    }
