"""Cases of LangChain's OpenAI client."""

from __future__ import annotations

import openai
from client_script import NotOffered, arrived, asked, case, expect, main, raises
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

ASKED = asked()


def model(key: str = ASKED["key"], **options: object) -> ChatOpenAI:
    fields = {"model": ASKED["models"]["chat"], "temperature": 0, "max_tokens": 12} | options
    return ChatOpenAI(base_url=ASKED["url"] + "/v1", api_key=key, **fields)


@case
def chat() -> None:
    """A chat has its text and usage."""
    answer = model().invoke("Tell me about rivers.")
    expect(len(answer.content) == 12, answer)
    expect(answer.usage_metadata["output_tokens"] == 12, answer.usage_metadata)


@case
def streamed_chat() -> None:
    """A streamed chat has the text of one that is not streamed, and its usage."""
    whole = model(max_tokens=40).invoke("Tell me about rivers.").content
    chunks = list(model(max_tokens=40, stream_usage=True).stream("Tell me about rivers."))
    text = "".join(chunk.content for chunk in chunks)
    expect(text == whole, f"{text!r}, not {whole!r}")
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    expect(sum(counts["output_tokens"] for counts in usage) == 40, usage)


@case
def batch() -> None:
    """A batch runs at once, each with its own answer."""
    answers = model().batch([f"Tell me about river {number}." for number in range(8)])
    expect([len(answer.content) for answer in answers] == [12] * 8, answers)


@case
def embeddings() -> None:
    """An embedding is a list of numbers."""
    embedder = OpenAIEmbeddings(
        model=ASKED["models"]["embeddings"],
        base_url=ASKED["url"] + "/v1",
        api_key=ASKED["key"],
        check_embedding_ctx_length=False,  # otherwise the text is sent as tokens of a tokenizer that is downloaded
        max_retries=0,
    )
    try:
        found = embedder.embed_query("one")
    except (openai.NotFoundError, openai.InternalServerError) as error:
        raise NotOffered(f"no embedding server runs: {error}") from None
    expect(len(found) > 10, found)


@case
def errors() -> None:
    """A wrong key, an unknown model and a bad request are exceptions of OpenAI's SDK."""
    with raises(openai.AuthenticationError, 401, "invalid_api_key"):
        model("wrong").invoke("x")
    with raises(openai.NotFoundError, 404, "model_not_found"):
        model(model="unknown").invoke("x")
    with raises(openai.BadRequestError, 400):
        model(max_tokens=100_000).invoke("x")


@case
def retries() -> None:
    """A request over the quota waits for retry-after, and then succeeds."""
    limited = model(ASKED["limited_key"], max_tokens=1)
    limited.invoke("x")
    limited.invoke("x")
    statuses = arrived(3)
    expect(statuses == [200, 429, 200], f"requests with the statuses {statuses} arrived")


if __name__ == "__main__":
    main()
