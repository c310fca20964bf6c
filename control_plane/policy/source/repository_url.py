"""URLs of policy repositories: validation, and removal of secrets before a URL is shown."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit, urlunsplit

SCHEMES = ("https", "http", "ssh", "git", "file")

_SCP_FORM = re.compile(r"^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^/].*$")
"""user@host:path, the short form of SSH remotes."""

_USER_INFO = re.compile(r"//[^/@\s]*@")


def url_error(url: str) -> str | None:
    """Return the problem of a URL, without the URL itself; None if the URL is valid."""
    if not url.isprintable() or " " in url:
        return "has spaces or characters that cannot be printed"
    if url.startswith("/") or _SCP_FORM.match(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is not a URL"
    if parts.scheme not in SCHEMES:
        return f"is neither an absolute path nor a URL of {', '.join(SCHEMES)}"
    if parts.scheme != "file" and not parts.hostname:
        return "names no host"
    if not parts.path:
        # For example https://user:password, if @REF is missing: the password would be taken as a port or host.
        return "names no path"
    if parts.query or parts.fragment:
        return "has a query or a fragment, which git does not send"
    return None


def without_credentials(url: str) -> str:
    """Return the URL without user, password, query and fragment."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(text: str, url: str) -> str:
    """Return a library's message about `url` without the URL's secrets."""
    text = text.replace(url, without_credentials(url))
    if "://" in url:
        parts = urlsplit(url)
        for secret in (parts.password, parts.username):
            if secret:
                text = text.replace(secret, "***").replace(unquote(secret), "***")
    return _USER_INFO.sub("//", text)
