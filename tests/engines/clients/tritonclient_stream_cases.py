"""Cases of streams of Triton's client, through Envoy and the endpoint picker, to a server of Triton's protocol."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy
import tritonclient.grpc as triton
from client_script import asked, case, expect, main
from tritonclient.utils import InferenceServerException

ASKED = asked()
MODEL = ASKED["models"]["streams"]
KEY = {"authorization": f"Bearer {ASKED['key']}"}
WAIT_S = 60.0


class Stream:
    """A stream, and what it is answered."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self.client = client
        self._answers: queue.Queue[Any] = queue.Queue()

    def start(self, headers: dict[str, str]) -> None:
        """Begin the stream."""
        self.client.start_stream(lambda result, error: self._answers.put(error or result), headers=headers)

    def send(self, values: numpy.ndarray, model: str = MODEL, **fields: Any) -> None:
        """Send an inference."""
        tensor = triton.InferInput("x", values.shape, "FP32")
        tensor.set_data_from_numpy(values)
        self.client.async_stream_infer(model, [tensor], **fields)

    def sums(self) -> list[float]:
        """The next answer, which is no error."""
        answer = self._answers.get(timeout=WAIT_S)
        expect(not isinstance(answer, InferenceServerException), answer)
        return answer.as_numpy("sums").tolist()

    def error(self) -> InferenceServerException:
        """The next answer, which is an error."""
        answer = self._answers.get(timeout=WAIT_S)
        expect(isinstance(answer, InferenceServerException), answer)
        return answer


@contextmanager
def stream(headers: dict[str, str] = KEY) -> Iterator[Stream]:
    """A stream, which ends with the context."""
    with triton.InferenceServerClient(urlsplit(ASKED["url"]).netloc) as client:
        begun = Stream(client)
        begun.start(headers)
        yield begun
        client.stop_stream()


def row(value: float) -> numpy.ndarray:
    return numpy.full((1, 2), value, dtype=numpy.float32)


def logged(outcome: str) -> int:
    """Number of requests for the model with an outcome in the access log of the agent."""
    lines = [json.loads(line) for line in Path(ASKED["access_log"]).read_text().splitlines()]
    return sum(line.get("model") == MODEL and line["outcome"] == outcome for line in lines)


def expect_logged(outcome: str, after: int) -> None:
    """Expect one more request with an outcome than `after`."""
    deadline = time.monotonic() + WAIT_S
    while logged(outcome) == after and time.monotonic() < deadline:
        time.sleep(0.1)
    expect(logged(outcome) == after + 1, f"{logged(outcome) - after} more {outcome} in the access log")


@case
def turns() -> None:
    """Inferences of a stream are answered in order, each before the next is sent; the stream is one line of the log."""
    before = logged("ok")
    with stream() as begun:
        for number in range(20):
            begun.send(row(number))
            found = begun.sums()
            expect(found == [2.0 * number], found)
    expect_logged("ok", before)


@case
def pipelined() -> None:
    """Inferences that are sent without waiting are answered in order, also with tensors of 2 MB."""
    with stream() as begun:
        for number in range(8):
            begun.send(numpy.full((2, 250_000), number, dtype=numpy.float32))
        for number in range(8):
            found = begun.sums()
            expect(found == [250_000.0 * number] * 2, found)


@case
def decoupled() -> None:
    """An inference that has many responses, as of a model that generates: each arrives before the stream ends."""
    with stream() as begun:
        begun.send(row(1.0), parameters={"responses": 50})
        begun.send(row(2.0), parameters={"responses": 2})
        found = [begun.sums() for _ in range(52)]
        expect(found == [[2.0]] * 50 + [[4.0]] * 2, found)


@case
def error_in_a_stream() -> None:
    """An error of one inference is the client's exception, and the stream goes on."""
    with stream() as begun:
        begun.send(row(1.0), request_id="first", parameters={"fails": True})
        error = begun.error()
        expect("first fails" in str(error.message()), error)
        begun.send(row(1.0))
        found = begun.sums()
        expect(found == [2.0], found)


@case
def refusals() -> None:
    """The status and the message of the agent are the client's exception: another model, another key."""
    for headers, model, status, text in (
        (KEY, "unknown-model", "NOT_FOUND", "unknown-model"),
        ({"authorization": "Bearer wrong"}, MODEL, "UNAUTHENTICATED", "key"),
    ):
        with stream(headers) as begun:
            begun.send(row(1.0), model)
            error = begun.error()
            expect(error.status() == f"StatusCode.{status}" and text in str(error.message()), error)


@case
def another_model() -> None:
    """A stream that changes its model is ended, since the new one was not selected for: an exception."""
    with stream() as begun:
        begun.send(row(1.0))
        begun.sums()
        begun.send(row(1.0), "unknown-model")
        begun.error()


@case
def cancelled() -> None:
    """A stream that the client cancels amid its responses counts as such, and does not hold a slot."""
    before = logged("client_left")
    with triton.InferenceServerClient(urlsplit(ASKED["url"]).netloc) as client:
        begun = Stream(client)
        begun.start(KEY)
        begun.send(row(1.0), parameters={"responses": 1_000_000})
        begun.sums()
        client.stop_stream(cancel_requests=True)
    expect_logged("client_left", before)


if __name__ == "__main__":
    main()
