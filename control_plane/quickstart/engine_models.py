"""Asks engines for the models that they serve."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20


class UnusableEngine(Exception):
    """An engine cannot be asked for its models; the message states the remedy."""


def base_url(text: str) -> str:
    """Return the URL of an engine without the path of its API.

    Raises:
        UnusableEngine: the text is no URL of an HTTP server.
    """
    unusable = UnusableEngine(f"{text} is not the URL of an engine; write it as http://127.0.0.1:8000")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise unusable from None
    if not valid or parts.query or parts.fragment or parts.username:
        raise unusable
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def models_of(engine: str) -> list[str]:
    """Return the names of the models that an engine serves, by `GET /v1/models`.

    Raises:
        UnusableEngine: the engine does not answer, or its answer is no list of models.
    """
    url = f"{engine}/v1/models"
    remedy = "start the engine first, or name its models with --model"
    try:
        with httpx.stream("GET", url, timeout=TIMEOUT_S) as response:
            content = b""
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise UnusableEngine(f"{url}: the answer is larger than {MAX_BYTES} bytes; {remedy}")
            if response.status_code != 200:
                raise UnusableEngine(f"{url}: answered {response.status_code}; {remedy}")
        listed = httpx.Response(200, content=content).json()["data"]
        models = [str(each["id"]) for each in listed]
    except httpx.HTTPError as error:
        raise UnusableEngine(f"{url}: {error or type(error).__name__}; {remedy}") from None
    except (ValueError, KeyError, TypeError):
        raise UnusableEngine(f"{url}: the answer is no list of models; name them with --model") from None
    if not models:
        raise UnusableEngine(f"{url}: the engine serves no model; load one, or name it with --model")
    return models
