"""`penstock dns`: the table, the exported formats, and updates that change nothing."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from control_plane.cli.command_options import ChangeOptions, FleetOptions
from control_plane.status.query_responses import DnsResponse
from penstock.dns.record_sets import NameRecords, RecordSet
from penstock.routing.reasons import Reason, Rejection
from tests.support.cli import run

EU = NameRecords(
    "eu.api.example.com",
    "api.example.com",
    10,
    {"eu-de": 0.8, "eu-es": 0.2},
    ("eu-de", "eu-es", "eu-gb"),
    (Rejection("eu-gb", Reason.REGION_FAILED),),
    (RecordSet("A", ("192.0.2.10", "192.0.2.20"), 10),),
)
NONE = msgspec.structs.replace(EU, name="page.api.example.com", shares={}, record_sets=())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[NameRecords]:
    """The names that the control plane returns; a test may change them."""
    found = [EU]

    @contextmanager
    def connect(options: FleetOptions) -> Any:
        def answer(method: str, path: str, params: Any = None) -> Any:
            response = DnsResponse(tuple(found), "digest")
            return SimpleNamespace(body=msgspec.json.encode(response), decoded=lambda kind: response)

        yield SimpleNamespace(request=answer)

    for options in (FleetOptions, ChangeOptions):
        monkeypatch.setattr(options, "connect", connect)
    return found


def test_the_table_has_shares_and_reasons(names: list[NameRecords]) -> None:
    shown = run("dns", "explain", "eu.api.example.com")
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("eu.api.example.com, 10 s\n")
    for words in ("eu-de", "80%", "not eu-gb: region_failed", "residency permits eu-de, eu-es, eu-gb"):
        assert words in shown.output


def test_exports_are_yaml_of_the_other_programs(names: list[NameRecords]) -> None:
    zone = msgspec.yaml.decode(run("dns", "export", "octodns").stdout)
    assert zone == {"eu": {"type": "A", "ttl": 10, "values": ["192.0.2.10", "192.0.2.20"]}}
    manifest = msgspec.yaml.decode(run("dns", "export", "external-dns", "--namespace", "edge").stdout)
    assert (manifest["kind"], manifest["metadata"]["namespace"]) == ("DNSEndpoint", "edge")


@pytest.mark.parametrize("target", ["octodns", "external-dns"])
def test_a_name_without_a_live_region_does_not_keep_the_others_from_changing(
    names: list[NameRecords], target: str
) -> None:
    names.append(msgspec.structs.replace(NONE, permitted_sets=(RecordSet("A", ("192.0.2.30",), 10),)))
    exported = run("dns", "export", target)
    assert exported.exit_code == 0
    assert all(address in exported.stdout for address in ("192.0.2.10", "192.0.2.20", "192.0.2.30"))
    assert "page.api.example.com: no permitted region is live; the records are those of all" in exported.stderr
    assert "eu.api.example.com" not in exported.stderr


@pytest.mark.parametrize("target", ["octodns", "external-dns"])
def test_nothing_is_exported_if_a_name_would_be_empty(names: list[NameRecords], target: str) -> None:
    names.append(NONE)
    refused = run("dns", "export", target)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no region is permitted for page.api.example.com; nothing is exported" in refused.stderr


def test_octodns_needs_one_zone(names: list[NameRecords]) -> None:
    names.append(msgspec.structs.replace(EU, name="x.other.example", zone="other.example"))
    assert "name one zone with --zone" in run("dns", "export", "octodns").stderr
    assert run("dns", "export", "octodns", "--zone", "other.example").exit_code == 0


def test_updates_need_a_key_and_an_address(names: list[NameRecords], tmp_path: Path) -> None:
    assert "cannot read" in run("dns", "update", "127.0.0.1:53", "--key-file", str(tmp_path / "none")).stderr
    assert run("dns", "update", "nowhere", "--key-file", str(tmp_path / "none")).exit_code == 2
