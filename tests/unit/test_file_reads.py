"""Only `adapters/files/plain_file.py` opens files for reading; whatever else does is listed here with the reason.

Another module could block its process on a FIFO in place of the file, or read without a bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.paths import ROOT

READER = "adapters/files/plain_file.py"

ALLOWED = {
    "adapters/files/tls_files.py": "OpenSSL opens what the reader has opened; the trust store of the system is checked",
    "adapters/etcd/etcd_stubs.py": "a source file of the installed package etcd3",
    "adapters/geoip.py": "geoip2 decodes the bytes of the reader",
    "adapters/object_store/folder_store.py": "objects, in a child process or a thread that may wait",
    "control_plane/policy/tarball.py": "an archive in memory",
    "control_plane/quickstart/places.py": "data of the installed package tzdata",
    "regional_agent/ledger/request_ledger.py": "the spool, which is no file",
    "regional_agent/ledger/segment_uploader.py": "files of the spool, in a child process that may wait",
    "control_plane/policy/time_zones.py": "data of the installed package tzdata",
    "control_plane/ui/ui_routes.py": "files of this package",
    # What follows opens files for writing.
    "adapters/files/authority_files.py": "a new file",
    "adapters/servers/process.py": "the log of a child process, and /proc",
    "adapters/standard_output.py": "/dev/null in place of a closed standard output",
    "adapters/store/store_backup.py": "a new file",
    "control_plane/cli/commands/audit_commands.py": "the exported file",
    "control_plane/cli/contexts.py": "a new file of tempfile",
    "control_plane/cli/main.py": "/dev/null in place of a closed standard output",
    "control_plane/quickstart/invitation.py": "new files, and an archive in memory",
    "regional_agent/config/last_known_good.py": "a new file",
    "regional_agent/ledger/spool_file.py": "a new file, and /proc",
    "regional_agent/telemetry/access_log.py": "the log, without blocking on a FIFO",
}

READS = {"read_text", "read_bytes", "load_cert_chain", "load_verify_locations", "load_default_certs", "open_database"}


def reads(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open a file: also those for writing, which a mode in a variable would hide."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield node
            case ast.Attribute(attr="open" | "fdopen", value=ast.Name(id="os" | "io" | "tarfile" | "gzip" | "zipfile")):
                yield node
            case ast.Attribute(attr="open") if _is_mode(node):
                yield node
            case ast.Attribute(attr=name) if name in READS:
                yield node
            case ast.Attribute(attr="Reader", value=ast.Attribute(attr="database")):
                yield node
            case ast.Attribute(attr="create_default_context") if node.args or node.keywords:
                yield node


def _is_mode(call: ast.Call) -> bool:
    """Whether `x.open(...)` is that of a path, and not of a sealed message."""
    options = {keyword.arg for keyword in call.keywords}
    first = call.args[0] if call.args else None
    return (first is None and not options) or isinstance(first, ast.Constant) or bool(options & {"mode", "encoding"})


def test_no_module_but_the_reader_opens_files_for_reading() -> None:
    found: dict[str, list[int]] = {}
    for package in ("penstock", "adapters", "control_plane", "regional_agent"):
        for path in sorted((ROOT / package).rglob("*.py")):
            lines = [call.lineno for call in reads(ast.parse(path.read_text()))]
            if lines:
                found[str(path.relative_to(ROOT))] = lines
    assert found.pop(READER)
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}, "use read_plain_file"
    assert ALLOWED.keys() - found.keys() == set(), "remove the entry"


def test_the_usual_ways_to_open_a_file_are_found() -> None:
    ways = """
open(path)
path.open("rb")
path.open()
path.open(encoding="utf-8")
path.read_text()
path.read_bytes()
os.open(path, os.O_RDONLY)
io.open(path)
context.load_cert_chain(path)
context.load_verify_locations(path)
ssl.create_default_context(cafile=path)
geoip2.database.Reader(path)
"""
    assert len(list(reads(ast.parse(ways)))) == len(ways.split("\n")) - 2
    assert list(reads(ast.parse("key.open(sealed)\nsessions.open(purpose, token)\nssl.create_default_context()"))) == []
