"""Cases of OpenAI's Python SDK."""

from __future__ import annotations

import asyncio
import json
import time

import openai
from client_script import NotOffered, arrived, asked, case, expect, main, raises

ASKED = asked()
MODEL = ASKED["models"]["chat"]
MESSAGES = [{"role": "user", "content": "Tell me about rivers."}]
EXACT = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def client(key: str = ASKED["key"], **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=ASKED["url"] + "/v1", api_key=key, **options)


@case
def chat() -> None:
    """A chat has its text and usage, and the SDK finds the request's id."""
    answer = client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12, **EXACT)
    expect(len(answer.choices[0].message.content) == 12, answer)
    expect(answer.usage.completion_tokens == 12, answer.usage)
    expect(answer._request_id, "the response has no x-request-id")


@case
def streamed_chat() -> None:
    """A streamed chat has the text of one that is not streamed, and its usage at the end."""
    whole = client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40, **EXACT)
    chunks = list(
        client().chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=40, stream=True, stream_options={"include_usage": True}, **EXACT
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    expect(text == whole.choices[0].message.content, f"{text!r}, not {whole.choices[0].message.content!r}")
    expect(chunks[-1].usage.completion_tokens == 40, chunks[-1])


@case
def closed_stream() -> None:
    """A stream that is closed early leaves the connection's successor usable."""
    sdk = client()
    stream = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1000, stream=True, **EXACT)
    next(iter(stream))
    stream.close()
    answer = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, **EXACT)
    expect(answer.choices, answer)


@case
def responses() -> None:
    """The Responses API works, streamed and whole."""
    whole = client().responses.create(model=MODEL, input="Rivers", max_output_tokens=12, temperature=0)
    expect(len(whole.output_text) == 12, whole.output_text)
    with client().responses.create(
        model=MODEL, input="Rivers", max_output_tokens=12, temperature=0, stream=True
    ) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect(text == whole.output_text, f"{text!r}, not {whole.output_text!r}")


@case
def many_at_once() -> None:
    """The asynchronous client has 16 chats at once."""

    async def ask() -> list[int]:
        async with openai.AsyncOpenAI(base_url=ASKED["url"] + "/v1", api_key=ASKED["key"], max_retries=0) as sdk:
            chats = (
                sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10, **EXACT) for _ in range(16)
            )
            return [answer.usage.completion_tokens for answer in await asyncio.gather(*chats)]

    expect(asyncio.run(ask()) == [10] * 16, "an answer has another length")


@case
def models() -> None:
    """models.list has the model."""
    ids = [model.id for model in client().models.list()]
    expect(MODEL in ids, ids)


@case
def one_model() -> None:
    """models.retrieve has the model, and an unknown one is NotFoundError."""
    try:
        found = client().models.retrieve(MODEL)
    except openai.NotFoundError as error:
        raise NotOffered(f"GET /v1/models/{MODEL}: {error}") from None
    expect(found.id == MODEL, found)
    with raises(openai.NotFoundError, 404):
        client().models.retrieve("unknown")


@case
def embeddings() -> None:
    """An embedding is a list of numbers with every encoding that the SDK requests."""
    try:
        found = client(max_retries=0).embeddings.create(model=ASKED["models"]["embeddings"], input=["one", "two"])
    except (openai.NotFoundError, openai.InternalServerError) as error:
        raise NotOffered(f"no embedding server runs: {error}") from None
    expect(len(found.data) == 2 and len(found.data[0].embedding) > 10, found)
    expect(all(isinstance(number, float) for number in found.data[0].embedding), "no numbers")


@case
def wrong_key() -> None:
    """A wrong key is AuthenticationError at once."""
    with raises(openai.AuthenticationError, 401, "invalid_api_key"):
        try:
            client("wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
        except openai.AuthenticationError as error:
            retries = error.request.headers.get("x-stainless-retry-count", "0")
            expect(retries == "0", f"the SDK has retried {retries} times")
            raise


@case
def unknown_model() -> None:
    """An unknown model is NotFoundError."""
    with raises(openai.NotFoundError, 404, "model_not_found"):
        client().chat.completions.create(model="unknown", messages=MESSAGES)


@case
def bad_requests() -> None:
    """A rejection by the agent or the engine raises BadRequestError."""
    with raises(openai.BadRequestError, 400):
        client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=100_000)
    with raises(openai.BadRequestError, 400):
        client().chat.completions.create(model=7, messages=MESSAGES)


@case
def unknown_path() -> None:
    """An API that is not offered is an exception with Penstock's message, not a broken connection."""
    try:
        client(max_retries=0).vector_stores.list()
    except openai.APIStatusError as error:
        expect(error.status_code in (404, 501) and error.body, error)


@case
def batches() -> None:
    """A file of chats runs as a batch, and bad lines, cancelling twice and deleted files are the SDK's exceptions."""
    sdk = client(max_retries=0)
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(20)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    age = {"anchor": "created_at", "seconds": 7200}
    file = sdk.files.create(file=("requests.jsonl", content), purpose="batch", expires_after=age)
    expect(file.expires_at == file.created_at + 7200, file)
    batch = sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"night": "1"},
        output_expires_after=age,
    )
    for _ in range(600):
        batch = sdk.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed", "expired"):
            break
        time.sleep(0.1)
    expect(batch.status == "completed" and batch.request_counts.completed == 20, batch)
    results = [json.loads(line) for line in sdk.files.content(batch.output_file_id).text.splitlines()]
    expect(sorted(each["custom_id"] for each in results) == sorted(line["custom_id"] for line in lines), results)
    expect(all(each["response"]["body"]["usage"]["completion_tokens"] == 3 for each in results), results)
    prompt_tokens = sum(each["response"]["body"]["usage"]["prompt_tokens"] for each in results)
    expect(batch.model == MODEL and batch.usage is not None, batch)
    expect((batch.usage.input_tokens, batch.usage.output_tokens) == (prompt_tokens, 60), batch.usage)
    listed = sdk.files.list(purpose="batch_output", order="asc", limit=100)
    expect(batch.output_file_id in [each.id for each in listed], "the results are not listed")
    expect(batch.id in [each.id for each in sdk.batches.list(limit=1)], "the batch is not listed")
    with raises(openai.ConflictError, 409):
        sdk.batches.cancel(batch.id)
    upload = sdk.uploads.upload_file_chunked(
        file=content, filename="parts.jsonl", bytes=len(content), mime_type="text/jsonl", purpose="batch", part_size=999
    )
    expect(upload.status == "completed" and upload.file is not None and upload.file.bytes == len(content), upload)
    expect(sdk.files.content(upload.file.id).content == content, "the parts are not the file")
    with raises(openai.ConflictError, 409):
        sdk.uploads.cancel(upload.id)
    with raises(openai.BadRequestError, 400):
        sdk.files.create(file=("requests.jsonl", content + b"{"), purpose="batch")
    expect(sdk.files.delete(file.id).deleted, file)
    with raises(openai.NotFoundError, 404):
        sdk.files.retrieve(file.id)


@case
def rate_limit() -> None:
    """Without retries, a used-up quota is RateLimitError with retry-after."""
    sdk = client(ASKED["limited_key"], max_retries=0)
    sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, **EXACT)
    try:
        sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, **EXACT)
    except openai.RateLimitError as error:
        expect(error.code == "rate_limit_exceeded", error)
        expect(float(error.response.headers["retry-after"]) >= 1, error.response.headers)
    else:
        expect(False, "no RateLimitError")


@case
def retries() -> None:
    """With retries, a request over the quota waits for retry-after, and then succeeds."""
    time.sleep(ASKED["retry_after_s"] + 0.5)
    before = len(arrived(0))
    sdk = client(ASKED["limited_key"])
    sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, **EXACT)
    began = time.monotonic()
    sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, **EXACT)
    took = time.monotonic() - began
    statuses = arrived(before + 3)[before:]
    expect(statuses == [200, 429, 200], f"requests with the statuses {statuses} arrived, in {took:.1f} s")


if __name__ == "__main__":
    main()
