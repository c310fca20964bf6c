"""The address of a policy repository: which kinds there are, and what of it may be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit, urlunsplit

SCHEMES = ("https", "http", "ssh", "git", "file")

_SCP_FORM = re.compile(r"^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^/].*$")
"""user@host:path, as SSH remotes are often written."""

_USER_INFO = re.compile(r"//[^/@\s]*@")


def why_unusable(url: str) -> str | None:
    """What is wrong with an address, in words that do not repeat it; None where it can be tried."""
    if not url.isprintable() or " " in url:
        return "has spaces or characters that cannot be printed"
    if url.startswith("/") or _SCP_FORM.match(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is no URL"
    if parts.scheme not in SCHEMES:
        return f"is neither an absolute path nor a URL of {', '.join(SCHEMES)}"
    if parts.scheme != "file" and not parts.hostname:
        return "names no host"
    if parts.query or parts.fragment:
        return "has a query or a fragment, which git does not send"
    return None


def shown(url: str) -> str:
    """The address without user, password, query and fragment."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(text: str, url: str) -> str:
    """What a library said about `url`, with everything secret of it taken out."""
    text = text.replace(url, shown(url))
    if "://" in url:
        parts = urlsplit(url)
        for secret in (parts.password, parts.username):
            if secret:
                text = text.replace(secret, "***").replace(unquote(secret), "***")
    return _USER_INFO.sub("//", text)
