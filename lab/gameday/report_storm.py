"""A defective agent with a valid certificate that sends large reports without a pause."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from adapters.files.identity_files import load_identity
from lab.demo.findings import Measured
from lab.gameday.workers import Workers
from penstock.fleet.report import AgentReport, DemandReport
from penstock.policy.residency import residency_class
from penstock.wire import identity
from penstock.wire.identity import decode_certificate
from penstock.wire.peer_keys import Keyring, PeerKeys
from penstock.wire.signed_report import PATH, report_headers

CONNECTIONS = 8
"""Number of connections to the control plane. Each connection sends the next report after the response."""

TIMEOUT_S = 5.0

REPORT_ROWS = 2_000
"""Demand rows of a report, which result in about 200 KiB."""

AGENT = "storm"


class ReportStorm:
    """The agent `storm` of a region, with one thread per connection.

    Args:
        directory: identity directory of the agent.
        region: region of the agent.
        regions: regions of the residency class in the demand rows.
        model: model in the demand rows.
        where: base URL of the control plane.
    """

    def __init__(self, directory: Path, region: str, regions: tuple[str, ...], model: str, where: str) -> None:
        self._keyring = Keyring(load_identity(directory, time.time()))
        self._region = region
        row = DemandReport(model, residency_class(frozenset(regions)).name, regions, 0.0)
        self._report = AgentReport(region, AGENT, time.time_ns(), 0, time.time(), demand=(row,) * REPORT_ROWS)
        self._address = urlsplit(where).netloc
        self._seq_lock = threading.Lock()
        self._seq = 0
        self.answers: dict[int, int] = {}
        """Number of reports by HTTP status of the response; 0 counts reports without a response."""
        self._workers = Workers(*[self._keep_reporting] * CONNECTIONS)

    def stop(self) -> Measured:
        """Stop the threads; return the counts of responses."""
        self._workers.stop()
        answers = ", ".join(f"{count} with status {status}" for status, count in sorted(self.answers.items()))
        answered = sum(count for status, count in self.answers.items() if status)
        return Measured(answered, f"{sum(self.answers.values())} reports were sent: {answers or 'none'}")

    def _keep_reporting(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
            try:
                peer_keys = self._introduced(connection)
                while not stopped.is_set():
                    self._count(self._send(connection, peer_keys))
            except (OSError, http.client.HTTPException):
                self._count(0)
                stopped.wait(0.1)
            finally:
                connection.close()

    def _introduced(self, connection: http.client.HTTPConnection) -> PeerKeys:
        connection.request("GET", identity.PATH)
        return self._keyring.keys_with(decode_certificate(connection.getresponse().read()), time.time())

    def _send(self, connection: http.client.HTTPConnection, peer_keys: PeerKeys) -> int:
        with self._seq_lock:
            self._seq += 1
            report = msgspec.structs.replace(self._report, seq=self._seq, sent_at=time.time())
        body = msgspec.msgpack.encode(report)
        headers = {
            "content-type": "application/msgpack",
            **report_headers(peer_keys, self._keyring.identity.peer.certificate, body),
        }
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status

    def _count(self, status: int) -> None:
        with self._seq_lock:
            self.answers[status] = self.answers.get(status, 0) + 1
