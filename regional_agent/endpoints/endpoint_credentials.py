"""Reads the credentials and certificates of endpoints from files, and reloads files that change.

An endpoint whose files were never usable is not used. If a file becomes unusable later, the last good content stays in
force. Secrets are held here and in the header lines of endpoints, and appear in no log, status page or error message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from adapters.files.plain_file import FileStalled, ThreadedRead
from adapters.files.secret_file import BadSecret, read_file, read_secrets
from adapters.files.watched_files import WatchedFiles
from adapters.tls_contexts import ClientTls
from penstock.http.header_rules import Header
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_options import AUTHORIZATION
from regional_agent.routing.request_rewrite import RequestRewrite
from regional_agent.upstream.upstream_pool import ServerTrust

MAX_SECRET_BYTES: Final = 8192
"""Maximum length of a secret; tokens of cloud providers have up to about 4 KiB."""

CHECK_S: Final = 1.0
"""Interval (s) between two checks for changed files."""

_SECRET: Final = re.compile(rb"[\x21-\x7e]+")

_REMEDY: Final = "put the engine's secret there, on one line"

_Secret = WatchedFiles[bytes | None]
_Trust = WatchedFiles[ClientTls | None]
_TlsFiles = tuple[str, str, str]

log = structlog.get_logger()


class _Files(NamedTuple):
    """The files of endpoints: secrets by path, and the paths of authorities, certificate and key together."""

    secrets: dict[str, _Secret]
    trust: dict[_TlsFiles, _Trust]


class EndpointCredentials:
    """The credentials and certificates of all endpoints. Each file is read once for all endpoints that use it."""

    def __init__(self, default_ca: Path | None = None) -> None:
        """Start without any file.

        Args:
            default_ca: authorities of endpoints with a client certificate and no `ca_file`; None uses the system's
                trust store.
        """
        self._default_ca = default_ca
        self._files = self._ahead = _Files({}, {})
        self._changes = ThreadedRead(self._read_changed, "the files of endpoints")
        self._stalled = False

    def read_ahead(self, specs: Iterable[EndpointSpec]) -> None:
        """Read the files that `specs` name and that are not in use, for the next `use`. Blocks; called in a thread."""
        self._ahead = self._watched(specs, _Files({}, {}))

    def use(self, specs: Iterable[EndpointSpec]) -> None:
        """Read the files of `specs` that were not read before, and drop the files that no spec names."""
        self._files, self._ahead = self._watched(specs, self._ahead), _Files({}, {})

    def _watched(self, specs: Iterable[EndpointSpec], ahead: _Files) -> _Files:
        used, secrets, trust = self._files, dict[str, _Secret](), dict[_TlsFiles, _Trust]()
        for spec in specs:
            file, tls = spec.credential_file, _tls_files(spec)
            if file and file not in secrets:
                known = used.secrets.get(file) or ahead.secrets.get(file)
                secrets[file] = known or WatchedFiles((Path(file),), _reader(file), fallback=None)
            if any(tls) and tls not in trust:
                trusted = used.trust.get(tls) or ahead.trust.get(tls)
                trust[tls] = trusted or WatchedFiles(_paths(tls), self._tls_reader(*tls), fallback=None)
        return _Files(secrets, trust)

    async def reload_changed(self) -> bool:
        """Read the files that have changed, in a thread; returns whether any content or problem has changed."""
        try:
            changed = await self._changes()
        except FileStalled as error:
            if not self._stalled:
                log.error("files of endpoints not read; the last good content stays in force", problem=str(error))
            self._stalled = True
            return False
        self._stalled = False
        return changed

    def rewrite(self, spec: EndpointSpec) -> RequestRewrite | None:
        """Return the changes to the requests for an endpoint; None if requests are not changed."""
        if not spec.is_rewritten:
            return None
        return RequestRewrite(spec.base_path, self._headers(spec), dict(spec.engine_names))

    def _headers(self, spec: EndpointSpec) -> tuple[Header, ...]:
        """Return the header fields of every request, including the credential if it is readable."""
        headers = tuple((name.encode(), value.encode()) for name, value in spec.headers)
        secret = self._files.secrets[spec.credential_file].content if spec.credential_file else None
        if secret is None:
            return headers
        value = b"Bearer " + secret if spec.credential_header == AUTHORIZATION else secret
        return (*headers, (spec.credential_header.encode(), value))

    def trust(self, spec: EndpointSpec) -> ServerTrust | None:
        """Return the TLS settings of connections to an endpoint; None if the endpoint uses the default settings."""
        tls = self._files.trust[_tls_files(spec)].content if any(_tls_files(spec)) else None
        return ServerTrust(tls, spec.server_name) if tls is not None or spec.server_name else None

    def problem(self, spec: EndpointSpec) -> tuple[str, bool]:
        """Return the problem of an endpoint's files, and whether it prevents the use of the endpoint."""
        for field, watched in self._of(spec):
            if watched.problem:
                stays = "; the last valid content stays in force" if watched.content is not None else ""
                return f"{field}: {watched.problem}{stays}", watched.content is None
        return "", False

    def _of(self, spec: EndpointSpec) -> Iterable[tuple[str, _Secret | _Trust]]:
        if spec.credential_file:
            yield "credential_file", self._files.secrets[spec.credential_file]
        files = _tls_files(spec)
        if any(files):
            yield "client_certificate_file" if spec.client_certificate_file else "ca_file", self._files.trust[files]

    def _read_changed(self) -> bool:
        changed = False
        watched: list[_Secret | _Trust] = [*self._files.secrets.values(), *self._files.trust.values()]
        for files in watched:
            problem = files.problem
            changed |= files.reload_if_changed() or files.problem != problem
        return changed

    def _tls_reader(self, ca: str, certificate: str, key: str) -> Callable[[], ClientTls]:

        def read() -> ClientTls:
            if key:
                read_file(Path(key), "key of the client certificate", "provide the file")
            authorities = Path(ca) if ca else self._default_ca
            return ClientTls(authorities, Path(certificate) if key else None, Path(key) if key else None)

        return read


def _reader(file: str) -> Callable[[], bytes]:

    def read() -> bytes:
        path = Path(file)
        secrets = read_secrets(path, "credential", min_bytes=1, remedy=_REMEDY)
        if len(secrets) > 1:
            raise BadSecret(f"{path}: the file of the credential has several lines; {_REMEDY}")
        if not _SECRET.fullmatch(secrets[0]) or len(secrets[0]) > MAX_SECRET_BYTES:
            raise BadSecret(
                f"{path}: the credential is not one word of up to {MAX_SECRET_BYTES} ASCII characters; {_REMEDY}"
            )
        return secrets[0]

    return read


def _tls_files(spec: EndpointSpec) -> _TlsFiles:
    return spec.ca_file, spec.client_certificate_file, spec.client_key_file


def _paths(files: _TlsFiles) -> tuple[Path | None, ...]:
    return tuple(Path(file) if file else None for file in files)
