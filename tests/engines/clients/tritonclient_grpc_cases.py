"""Cases of Triton's Python client over gRPC, through Envoy and the endpoint picker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy
import tritonclient.grpc as triton
from client_script import Failed, asked, case, expect, main
from tritonclient.utils import InferenceServerException

ASKED = asked()
MODEL = ASKED["models"]["tensors"]
KEY = {"authorization": f"Bearer {ASKED['key']}"}
WAIT_S = 60.0


def client() -> triton.InferenceServerClient:
    return triton.InferenceServerClient(urlsplit(ASKED["url"]).netloc)


def tensor(values: numpy.ndarray) -> triton.InferInput:
    found = triton.InferInput("x", values.shape, "FP32")
    found.set_data_from_numpy(values)
    return found


def infer(values: numpy.ndarray, model: str = MODEL, headers: dict[str, str] = KEY) -> list[float]:
    with client() as connected:
        found = connected.infer(model, [tensor(values)], headers=headers, client_timeout=WAIT_S)
    return found.as_numpy("sums").flatten().tolist()


def served() -> int:
    """Number of inferences in the access log of the agent that succeeded."""
    lines = [json.loads(line) for line in Path(ASKED["access_log"]).read_text().splitlines()]
    return sum(line.get("model") == MODEL and line.get("outcome") == "ok" for line in lines)


@case
def inference() -> None:
    """Binary tensors are inferred on, and each inference is in the access log of the agent."""
    before = served()
    sums = infer(numpy.array([[1, 2], [3, 4]], dtype=numpy.float32))
    expect(sums == [3.0, 7.0], sums)
    deadline = time.monotonic() + WAIT_S
    while served() == before and time.monotonic() < deadline:
        time.sleep(0.1)
    expect(served() == before + 1, f"{served() - before} more in the access log")


@case
def large_tensor() -> None:
    """A tensor of 2 MB, which arrives in many parts, is inferred on."""
    sums = infer(numpy.ones((2, 250_000), dtype=numpy.float32))
    expect(sums == [250_000.0, 250_000.0], sums)


@case
def errors() -> None:
    """The client raises its exception with the status and the message of the agent, for a model and for a key."""
    values = numpy.ones((1, 2), dtype=numpy.float32)
    wrong = {"authorization": "Bearer wrong"}
    for fields, status, text in (
        ({"model": "unknown-model"}, "NOT_FOUND", "unknown-model"),
        ({"headers": wrong}, "UNAUTHENTICATED", "key"),
    ):
        try:
            infer(values, **fields)
        except InferenceServerException as error:
            expect(error.status() == f"StatusCode.{status}" and text in str(error.message()), error)
        else:
            raise Failed(f"no exception for {fields}")


if __name__ == "__main__":
    main()
