"""Reads the credentials and certificates of endpoints from files, and reloads files that change.

An endpoint whose files were never usable is not used. If a file becomes unusable later, the last good content stays in
force. Secrets are held here and in the header lines of endpoints, and appear in no log, status page or error message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Final, Generic, TypeVar

import structlog

from adapters.file_stamp import Stamp, file_stamp
from adapters.secret_file import BadSecret, read_file, read_secrets
from adapters.tls_contexts import BadTlsFiles, ClientTls
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_options import AUTHORIZATION
from regional_agent.http.header_rules import Header
from regional_agent.routing.engine_request import RequestRewrite
from regional_agent.upstream.upstream_pool import ServerTrust

MAX_SECRET_BYTES: Final = 8192
"""Maximum length of a secret; tokens of cloud providers have up to about 4 KiB."""

CHECK_S: Final = 1.0
"""Interval (s) between two checks for changed files."""

_SECRET: Final = re.compile(rb"[\x21-\x7e]+")

_REMEDY: Final = "put the engine's secret there, on one line"

T = TypeVar("T")

log = structlog.get_logger()


class _Watched(Generic[T]):
    """The last valid content of one or more files."""

    def __init__(self, read: Callable[[], T], files: Iterable[str]) -> None:
        """Read the files."""
        self._read = read
        self._files = [Path(file) for file in files if file]
        self._stamps: list[Stamp | None] = []
        self.value: T | None = None
        """The last valid content; None if the files were never usable."""
        self.problem = ""
        """Why the present files are unusable; empty if they are in force."""
        self.read_if_changed()

    def read_if_changed(self) -> bool:
        """Read the files if one has changed, or if the last read failed; returns whether `value` or `problem` changed.

        A failed read is repeated because a changed file mode, which may resolve the problem, does not change the stamp.
        """
        stamps = [file_stamp(file) for file in self._files]
        if stamps == self._stamps and not self.problem:
            return False
        self._stamps = stamps
        try:
            self.value, self.problem = self._read(), ""
        except (BadSecret, BadTlsFiles) as error:
            if str(error) == self.problem:
                return False
            self.problem = str(error)
            log.error("a file of an endpoint is unusable", problem=self.problem)
        return True


class EndpointCredentials:
    """The credentials and certificates of all endpoints. Each file is read once for all endpoints that use it."""

    def __init__(self, default_ca: Path | None = None) -> None:
        """Start without any file.

        Args:
            default_ca: authorities of endpoints with a client certificate and no `ca_file`; None uses the system's
                trust store.
        """
        self._default_ca = default_ca
        self._secrets: dict[str, _Watched[bytes]] = {}
        self._trust: dict[tuple[str, str, str], _Watched[ClientTls]] = {}

    def use(self, specs: Collection[EndpointSpec]) -> None:
        """Read the files of `specs` that were not read before, and drop the files that no spec names."""
        secrets = {spec.credential_file for spec in specs if spec.credential_file}
        self._secrets = {file: self._secrets.get(file) or _Watched(_reader(file), (file,)) for file in sorted(secrets)}
        trust = {_tls_files(spec) for spec in specs if any(_tls_files(spec))}
        self._trust = {
            files: self._trust.get(files) or _Watched(self._tls_reader(*files), files) for files in sorted(trust)
        }

    async def reload_changed(self) -> bool:
        """Read the files that have changed, in a thread; returns whether any file has changed."""
        return await asyncio.to_thread(self._read_changed)

    def rewrite(self, spec: EndpointSpec) -> RequestRewrite | None:
        """Return the changes to the requests for an endpoint; None if requests are not changed."""
        if not spec.is_rewritten:
            return None
        return RequestRewrite(spec.base_path, self._headers(spec), dict(spec.engine_names))

    def _headers(self, spec: EndpointSpec) -> tuple[Header, ...]:
        """Return the header fields of every request, including the credential if it is readable."""
        headers = tuple((name.encode(), value.encode()) for name, value in spec.headers)
        secret = self._secrets[spec.credential_file].value if spec.credential_file else None
        if secret is None:
            return headers
        value = b"Bearer " + secret if spec.credential_header == AUTHORIZATION else secret
        return (*headers, (spec.credential_header.encode(), value))

    def trust(self, spec: EndpointSpec) -> ServerTrust | None:
        """Return the TLS settings of connections to an endpoint; None if the endpoint uses the default settings."""
        tls = self._trust[_tls_files(spec)].value if any(_tls_files(spec)) else None
        return ServerTrust(tls, spec.server_name) if tls is not None or spec.server_name else None

    def problem(self, spec: EndpointSpec) -> tuple[str, bool]:
        """Return the problem of an endpoint's files, and whether it prevents the use of the endpoint."""
        for field, watched in self._of(spec):
            if watched.problem:
                stays = "; the last valid content stays in force" if watched.value is not None else ""
                return f"{field}: {watched.problem}{stays}", watched.value is None
        return "", False

    def _of(self, spec: EndpointSpec) -> Iterable[tuple[str, _Watched[bytes] | _Watched[ClientTls]]]:
        if spec.credential_file:
            yield "credential_file", self._secrets[spec.credential_file]
        files = _tls_files(spec)
        if any(files):
            yield "client_certificate_file" if spec.client_certificate_file else "ca_file", self._trust[files]

    def _read_changed(self) -> bool:
        changed = sum(secret.read_if_changed() for secret in list(self._secrets.values()))
        return changed + sum(tls.read_if_changed() for tls in list(self._trust.values())) > 0

    def _tls_reader(self, ca: str, certificate: str, key: str) -> Callable[[], ClientTls]:

        def read() -> ClientTls:
            _require_plain_file(Path(key) if key else None)
            if key:
                read_file(Path(key), "key of the client certificate", "provide the file")
            authorities = Path(ca) if ca else self._default_ca
            return ClientTls(authorities, Path(certificate) if key else None, Path(key) if key else None)

        return read


def _reader(file: str) -> Callable[[], bytes]:

    def read() -> bytes:
        path = Path(file)
        _require_plain_file(path)
        secrets = read_secrets(path, "credential", min_bytes=1, remedy=_REMEDY)
        if len(secrets) > 1:
            raise BadSecret(f"{path}: the file of the credential has several lines; {_REMEDY}")
        if not _SECRET.fullmatch(secrets[0]) or len(secrets[0]) > MAX_SECRET_BYTES:
            raise BadSecret(
                f"{path}: the credential is not one word of up to {MAX_SECRET_BYTES} ASCII characters; {_REMEDY}"
            )
        return secrets[0]

    return read


def _require_plain_file(path: Path | None) -> None:
    """Raise BadSecret if the path is not a plain file, because opening a pipe would block."""
    try:
        if path is not None and not S_ISREG(path.stat().st_mode):
            raise BadSecret(f"{path}: not a plain file; put one there")
    except OSError as error:
        raise BadSecret(f"{path}: cannot be read: {error.strerror}; put the file there") from None


def _tls_files(spec: EndpointSpec) -> tuple[str, str, str]:
    return spec.ca_file, spec.client_certificate_file, spec.client_key_file
