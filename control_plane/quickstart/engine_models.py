"""Asks engines for the models that they serve, and for the APIs by which they serve them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx

from adapters.files.secret_file import BadSecret, read_secrets
from penstock.health.health_check import NO_PAGE

TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20

_NEEDS_KEY = "write the key that the engine requires into a file, and name it with --engine-key-file"
_REMEDIES = {
    401: _NEEDS_KEY,
    403: _NEEDS_KEY,
    404: "add the path before /v1 to the URL of the engine, if it has one, or name its models with --model",
}


_API_PATHS = {"anthropic": "/v1/messages", "ollama": "/api/chat", "vllm": "/tokenize"}
"""A path of each API that engines may serve besides OpenAI's, by the preset with its routes."""


class UnusableEngine(Exception):
    """An engine cannot be asked for its models; the message states the remedy."""


def base_url(text: str) -> str:
    """Return the URL of an engine with its port, and with the path before that of its API, if there is one.

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
    port = "" if parts.port else f":{443 if parts.scheme == 'https' else 80}"
    return f"{parts.scheme}://{parts.netloc.removesuffix(':')}{port}{parts.path.rstrip('/').removesuffix('/v1')}"


def read_key(file: Path) -> str:
    """Return the key that engines require; raises BadSecret."""
    remedy = "write the engine's key there, on one line"
    keys = read_secrets(file, "engine's key", min_bytes=1, remedy=remedy)
    if len(keys) > 1 or not keys[0].isascii():
        raise BadSecret(f"{file}: is not one line of ASCII characters; {remedy}")
    return keys[0].decode()


def models_of(engine: str, key: str = "") -> list[str]:
    """Return the names of the models that an engine serves, by `GET /v1/models`.

    Args:
        key: what the engine requires as a bearer token; empty for none.

    Raises:
        UnusableEngine: the engine does not answer, or its answer is no list of models.
    """
    url = f"{engine}/v1/models"
    remedy = "start the engine first, or name its models with --model"
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.stream("GET", url, timeout=TIMEOUT_S, headers=headers) as response:
            content = b""
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise UnusableEngine(f"{url}: the answer is larger than {MAX_BYTES} bytes; {remedy}")
            if response.has_redirect_location:
                target = response.headers["location"].removesuffix("/v1/models")
                remedy = f"it redirects: name the engine by {target[:200]!r}"
            if response.status_code != 200:
                raise UnusableEngine(
                    f"{url}: answered {response.status_code}; {_REMEDIES.get(response.status_code, remedy)}"
                )
        listed = httpx.Response(200, content=content).json()["data"] or ()
        models = list(dict.fromkeys(str(each["id"]) for each in listed))
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            remedy = "set SSL_CERT_FILE to the PEM file of the authority that signed the engine's certificate"
        raise UnusableEngine(f"{url}: {error or type(error).__name__}; {remedy}") from None
    except (ValueError, KeyError, TypeError):
        raise UnusableEngine(f"{url}: the answer is no list of models; name them with --model") from None
    if not models:
        raise UnusableEngine(f"{url}: the engine serves no model; load one, or name it with --model")
    return models


def presets_of(engine: str, key: str = "") -> list[str]:
    """Return the presets of the APIs that an engine serves besides OpenAI's.

    An engine that serves an API refuses an empty request there, and has no such path otherwise. An engine that does not
    answer serves none.
    """
    found = []
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for preset, path in _API_PATHS.items():
        try:
            with httpx.stream("POST", f"{engine}{path}", json={}, timeout=TIMEOUT_S, headers=headers) as response:
                # Read, so that the close of the connection is no reset, which servers report as an error.
                size = 0
                for chunk in response.iter_raw():
                    size += len(chunk)
                    if size > MAX_BYTES:
                        break
                if response.status_code not in NO_PAGE:
                    found.append(preset)
        except httpx.HTTPError:
            break
    return found
