"""Cases of Triton's Python client over HTTP."""

from __future__ import annotations

from urllib.parse import urlsplit

import numpy
import tritonclient.http as triton
from client_script import Failed, NotOffered, asked, case, expect, main
from tritonclient.utils import InferenceServerException

ASKED = asked()
MODEL = ASKED["models"]["tensors"]
KEY = {"authorization": f"Bearer {ASKED['key']}"}


def infer(binary: bool, model: str = MODEL, headers: dict[str, str] = KEY) -> list[float]:
    client = triton.InferenceServerClient(urlsplit(ASKED["url"]).netloc)
    values = numpy.array([[1, 2], [3, 4]], dtype=numpy.float32)
    tensor = triton.InferInput("x", values.shape, "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    output = triton.InferRequestedOutput("sums", binary_data=binary)
    try:
        # The client adds the size of the JSON to the headers that it is given.
        found = client.infer(model, [tensor], outputs=[output], headers=dict(headers))
    finally:
        client.close()
    return found.as_numpy("sums").flatten().tolist()


def has_route(error: InferenceServerException) -> bool:
    """Whether an error has KServe's format; that of a path without a route is an object, which has no text."""
    return isinstance(error.message(), str)


def need_route() -> None:
    """Raises NotOffered unless the agent has a route for inference."""
    try:
        infer(binary=False)
    except InferenceServerException as error:
        if not has_route(error):
            raise NotOffered("the agent has no route for inference") from None
        raise


@case
def json_tensors() -> None:
    """Tensors as JSON are inferred on."""
    need_route()
    sums = infer(binary=False)
    expect(sums == [3.0, 7.0], sums)


@case
def binary_tensors() -> None:
    """Tensors in the binary extension, which is the client's default, are inferred on."""
    need_route()
    try:
        sums = infer(binary=True)
    except InferenceServerException as error:
        if "JSON decode error" in str(error):
            raise NotOffered("this MLServer reads JSON only: it answers 422, also without an agent") from None
        raise
    expect(sums == [3.0, 7.0], sums)


@case
def metadata() -> None:
    """The health of server and model, and the model's metadata, are read through the agent."""
    need_route()
    client = triton.InferenceServerClient(urlsplit(ASKED["url"]).netloc)
    try:
        expect(client.is_model_ready(MODEL, headers=KEY), "the model is not ready")
        expect(client.get_model_metadata(MODEL, headers=KEY)["name"] == MODEL, "the metadata is of another model")
    except InferenceServerException as error:
        if not has_route(error):
            raise NotOffered("the agent has no route for metadata") from None
        raise
    finally:
        client.close()


@case
def errors() -> None:
    """The client raises its exception with the agent's message for an unknown model and for a wrong key."""
    need_route()
    for fields, text in (({"model": "unknown"}, "unknown"), ({"headers": {"authorization": "Bearer wrong"}}, "key")):
        try:
            infer(binary=False, **fields)
        except InferenceServerException as error:
            expect(text in str(error), error)
        else:
            raise Failed(f"no exception for {fields}")


if __name__ == "__main__":
    main()
