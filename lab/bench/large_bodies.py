"""Requests with large bodies at a fixed rate, each connection with a blocking socket in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from random import Random

from adapters.servers.free_ports import LOOPBACK
from lab.bench.router.load import Run

THREADS = 16

TIMEOUT_S = 10.0


def large_bodies(port: int, request: bytes, per_s: float, seconds: float) -> Run:
    """Send `request` as a Poisson process of `per_s` requests per second; returns the latencies and errors."""
    run = Run()
    began = time.perf_counter()
    threads = [
        threading.Thread(target=_send, args=(port, request, per_s / THREADS, seconds, Random(number), run))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.seconds = time.perf_counter() - began
    return run


def _send(port: int, request: bytes, per_s: float, seconds: float, rng: Random, run: Run) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends = time.perf_counter() + seconds
        due = time.perf_counter() + rng.expovariate(per_s)
        while due < ends:
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            try:
                sock.sendall(request)
                received = sock.recv(65_536)
            except OSError:
                received = b""
            # The responses of the backends arrive in one read, or with a last read of a few bytes.
            while received and not received.endswith((b"}", b"0\r\n\r\n")):
                part = sock.recv(65_536)
                received = received + part if part else b""
            if not received.startswith(b"HTTP/1.1 200"):
                run.errors += 1
                return
            run.answers += 1
            run.latencies_s.append(time.perf_counter() - began)
            due += rng.expovariate(per_s)
