"""Cases of LiteLLM, as a library."""

from __future__ import annotations

import time

import litellm
from client_script import Failed, NotOffered, arrived, asked, case, expect, main

ASKED = asked()
MODEL = "openai/" + ASKED["models"]["chat"]
MESSAGES = [{"role": "user", "content": "Tell me about rivers."}]
litellm.telemetry = False
litellm.suppress_debug_info = True


def options(key: str = ASKED["key"], **more: object) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": MESSAGES,
        "api_base": ASKED["url"] + "/v1",
        "api_key": key,
        "temperature": 0,
    } | more


@case
def chat() -> None:
    """A chat has its text and usage."""
    answer = litellm.completion(**options(max_tokens=12))
    expect(len(answer.choices[0].message.content) == 12, answer)
    expect(answer.usage.completion_tokens == 12, answer.usage)


@case
def vllm_provider() -> None:
    """LiteLLM's provider for vLLM works too."""
    answer = litellm.completion(**options(model="hosted_vllm/" + ASKED["models"]["chat"], max_tokens=12))
    expect(len(answer.choices[0].message.content) == 12, answer)


@case
def streamed_chat() -> None:
    """A streamed chat has the text of one that is not streamed."""
    whole = litellm.completion(**options(max_tokens=40)).choices[0].message.content
    chunks = litellm.completion(**options(max_tokens=40, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    expect(text == whole, f"{text!r}, not {whole!r}")


@case
def anthropic_provider() -> None:
    """LiteLLM's provider for Anthropic's API works, if the agent has a route for messages."""
    try:
        answer = litellm.completion(
            **options(model="anthropic/" + ASKED["models"]["chat"], api_base=ASKED["url"], max_tokens=12)
        )
    except litellm.NotFoundError as error:
        raise NotOffered(f"the agent has no route /v1/messages: {str(error)[:200]}") from None
    expect(len(answer.choices[0].message.content) == 12, answer)


@case
def embeddings() -> None:
    """An embedding is a list of numbers."""
    try:
        found = litellm.embedding(
            model="openai/" + ASKED["models"]["embeddings"],
            input=["one"],
            api_base=ASKED["url"] + "/v1",
            api_key=ASKED["key"],
            max_retries=0,
        )
    except (litellm.NotFoundError, litellm.ServiceUnavailableError, litellm.InternalServerError) as error:
        raise NotOffered(f"no embedding server runs: {str(error)[:200]}") from None
    expect(len(found.data[0]["embedding"]) > 10, found)


@case
def errors() -> None:
    """A wrong key, an unknown model and a bad request are LiteLLM's exceptions for them."""
    for fields, expected in (
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"model": "openai/unknown"}, litellm.NotFoundError),
        ({"max_tokens": 100_000}, litellm.BadRequestError),
    ):
        try:
            litellm.completion(**options() | fields)
        except expected:
            pass
        else:
            raise Failed(f"no {expected.__name__} for {fields}")


@case
def retries() -> None:
    """Over the quota: RateLimitError without retries; with them, the request waits for retry-after and succeeds."""
    limited = options(ASKED["limited_key"], max_tokens=1)
    litellm.completion(**limited)
    try:
        litellm.completion(**limited, max_retries=0)
    except litellm.RateLimitError as error:
        expect("has used up the budget" in str(error), error)
    else:
        raise Failed("no RateLimitError")
    time.sleep(ASKED["retry_after_s"] + 0.5)
    before = len(arrived(2))
    litellm.completion(**limited)
    litellm.completion(**limited, max_retries=3)
    statuses = arrived(before + 3)[before:]
    expect(statuses == [200, 429, 200], f"requests with the statuses {statuses} arrived")


if __name__ == "__main__":
    main()
