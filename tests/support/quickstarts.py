"""Runs `penstock quickstart` and `penstock join`, and sends chats to the region that they start."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from adapters.servers.process import find_script


@contextmanager
def running(*arguments: str, program: str | None = None) -> Iterator[str]:
    """Run a command until the block ends, from the line that names the base URL on; yields what it printed.

    Args:
        program: the program; None selects `penstock` of this environment.
    """
    argv = [program or find_script("penstock"), *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    shown = ""
    try:
        for line in process.stdout:
            shown += line
            if line.strip().startswith("files"):
                break
        assert "base URL" in shown, shown
        yield shown
    finally:
        for _ in range(20):  # timeout(1) and impatient operators send more than one
            process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60.0)[0]
    assert process.returncode == 0, rest


def chat(shown: str, key: str, model: str = "llama-3.1-8b") -> httpx.Response:
    """Send a chat to the base URL that a command printed."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{base_url_in(shown)}/chat/completions", headers=headers, json=body, timeout=60.0)


def base_url_in(shown: str) -> str:
    base = re.search(r"base URL\s+([^\s,]+)", shown)
    assert base is not None, shown
    return base[1]


def key_in(shown: str) -> str:
    found = re.search(r"API key\s+(\S+)", shown)
    assert found is not None, shown
    return found[1]


def page_in(shown: str) -> str:
    found = re.search(r"page\s+(\S+)", shown)
    assert found is not None, shown
    return found[1]
