"""The certificate of the endpoint picker, and which certificates of the fleet its clients may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from adapters.files.identity_files import REMEDY
from adapters.files.secret_file import read_file
from adapters.files.watched_files import WatchedFiles
from adapters.tls_contexts import ServerTls
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId

ROLES: Final = frozenset({ProcessRole.AGENT, ProcessRole.SERVER})
"""The roles whose certificates Envoy may have: that of the agent beside it, or one for a server (`certs issue server`).

The picker's messages contain the credentials of endpoints, which no monitoring system may read."""

_NAMES: Final = "x509_subject_alternative_name"


class PickerTls:
    """The credentials of the server, whose files are reloaded when they change."""

    def __init__(self, certificate: Path, key: Path, authorities: Path) -> None:
        """Read the files; `authorities` sign the certificates of clients.

        Raises:
            BadTlsFiles, BadSecret: a file is unusable.
        """

        def make() -> Any:
            ServerTls(certificate, key, authorities)  # gRPC reports an unusable file at the first handshake alone
            chain = read_file(certificate, "certificate", REMEDY, public=True)
            trusted = read_file(authorities, "certificates of the authorities", REMEDY, public=True)
            pair = read_file(key, "private key", REMEDY), chain
            return grpc.ssl_server_certificate_configuration([pair], trusted)

        self.files: WatchedFiles[Any] = WatchedFiles((certificate, key, authorities), make)

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for the server."""
        return grpc.dynamic_ssl_server_credentials(
            self.files.content, lambda: self.files.content, require_client_authentication=True
        )


def may_ask(auth_context: Mapping[str, Sequence[bytes]]) -> bool:
    """Whether the client certificate of a connection permits its owner to use the picker.

    Args:
        auth_context: gRPC's properties of the connection.
    """
    for name in auth_context.get(_NAMES, ()):
        try:
            return SpiffeId.parse(name.decode("latin-1")).role in ROLES
        except BadIdentity:
            continue
    return False
