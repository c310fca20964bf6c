"""Cases of Anthropic's Python SDK."""

from __future__ import annotations

import time

import anthropic
from client_script import NotOffered, arrived, asked, case, expect, main, raises

ASKED = asked()
MODEL = ASKED["models"]["chat"]
GREEDY = {"temperature": 0}
"""The SDK has no argument for it."""
MESSAGES = [{"role": "user", "content": "Tell me about rivers."}]


def client(key: str = ASKED["key"], **options: object) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=ASKED["url"], api_key=key, **options)


def need_route() -> None:
    """Raises NotOffered unless the agent has a route for messages."""
    try:
        client().messages.create(model=MODEL, messages=MESSAGES, max_tokens=1)
    except anthropic.NotFoundError as error:
        raise NotOffered(f"the agent has no route /v1/messages: {error}") from None


@case
def message() -> None:
    """A message has its text and usage."""
    need_route()
    answer = client().messages.create(model=MODEL, messages=MESSAGES, max_tokens=12, extra_body=GREEDY)
    expect(len(answer.content[0].text) == 12 and answer.stop_reason == "max_tokens", answer)
    expect(answer.usage.output_tokens == 12, answer.usage)


@case
def streamed_message() -> None:
    """A streamed message has the text of one that is not streamed, and its usage."""
    need_route()
    whole = client().messages.create(model=MODEL, messages=MESSAGES, max_tokens=40, extra_body=GREEDY)
    with client().messages.stream(model=MODEL, messages=MESSAGES, max_tokens=40, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text == whole.content[0].text, f"{text!r}, not {whole.content[0].text!r}")
    expect(final.usage.output_tokens == 40, final)


@case
def count_tokens() -> None:
    """messages.count_tokens works."""
    need_route()
    counted = client().messages.count_tokens(model=MODEL, messages=MESSAGES)
    expect(counted.input_tokens > 10, counted)


@case
def message_batches() -> None:
    """A batch of messages has a result for each, and bad requests, early results and deletion are the SDK's."""
    need_route()
    sdk = client(max_retries=0)
    params = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, **GREEDY}
    requests = [{"custom_id": f"r{number}", "params": params} for number in range(20)]
    batch = sdk.messages.batches.create(requests=requests)
    expect(batch.processing_status == "in_progress" and batch.results_url is None, batch)
    for _ in range(600):
        batch = sdk.messages.batches.retrieve(batch.id)
        if batch.processing_status == "ended":
            break
        time.sleep(0.1)
    expect(batch.processing_status == "ended" and batch.request_counts.succeeded == 20, batch)
    results = list(sdk.messages.batches.results(batch.id))
    expect(sorted(each.custom_id for each in results) == sorted(each["custom_id"] for each in requests), results)
    expect(all(each.result.message.usage.output_tokens == 3 for each in results), results)
    expect(batch.id in [each.id for each in sdk.messages.batches.list(limit=1)], "the batch is not listed")
    expect(sdk.messages.batches.cancel(batch.id).processing_status == "ended", batch)
    with raises(anthropic.BadRequestError, 400):
        sdk.messages.batches.create(requests=[requests[0], requests[0]])
    expect(sdk.messages.batches.delete(batch.id).type == "message_batch_deleted", batch)
    with raises(anthropic.NotFoundError, 404):
        sdk.messages.batches.retrieve(batch.id)


@case
def wrong_key() -> None:
    """A wrong x-api-key is AuthenticationError at once."""
    need_route()
    with raises(anthropic.AuthenticationError, 401):
        try:
            client("wrong").messages.create(model=MODEL, messages=MESSAGES, max_tokens=1)
        except anthropic.AuthenticationError as error:
            retries = error.request.headers.get("x-stainless-retry-count", "0")
            expect(retries == "0", f"the SDK has retried {retries} times")
            raise


@case
def bad_requests() -> None:
    """An unknown model is NotFoundError, and a bad request BadRequestError, in Anthropic's format."""
    need_route()
    for fields, expected in (
        ({"model": "unknown"}, anthropic.NotFoundError),
        ({"max_tokens": 8000}, anthropic.BadRequestError),
    ):
        try:
            client().messages.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 1} | fields)
        except expected as error:
            expect(error.body.get("type") == "error" and error.body["error"]["message"], error.body)
        else:
            expect(False, f"no {expected.__name__} for {fields}")


@case
def retries() -> None:
    """Over the quota: RateLimitError without retries; with them the request waits for retry-after and succeeds."""
    need_route()
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1}
    client(ASKED["limited_key"]).messages.create(**ask)
    with raises(anthropic.RateLimitError, 429):
        client(ASKED["limited_key"], max_retries=0).messages.create(**ask)
    client(ASKED["limited_key"]).messages.create(**ask)
    statuses = arrived(4)
    expect(statuses in ([200, 429, 429, 200], [200, 429, 200]), f"requests with the statuses {statuses} arrived")


if __name__ == "__main__":
    main()
