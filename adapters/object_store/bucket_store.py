"""An object store in a bucket of S3, Google Cloud Storage or Azure, through obstore.

obstore reads credentials and further configuration from the environment, such as AWS_ACCESS_KEY_ID, AWS_REGION and
AWS_ENDPOINT_URL, and from the metadata service of the cloud.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from adapters.object_store.object_store import ObjectMissing, SignedMethod, StoredObject, StoreUnavailable

TIMEOUT: Final = timedelta(seconds=20)
"""Maximum time of one HTTP request."""

MAX_RETRIES: Final = 2
"""Retries of obstore itself; the callers try again later."""

NAMES_AT_ONCE: Final = 1000
"""Number of names that buckets return for one request."""

MAX_MESSAGE: Final = 300
"""Maximum number of characters of a message of the store."""

_ALLOW_HTTP: Final = "AWS_ALLOW_HTTP"

_SECRETS: Final = re.compile(r"(?i)((?:signature|credential|token|secret|key)[a-z_-]*[=: ]+)[^\s&,}]+")


class BucketStore:
    """Objects of a bucket, below the prefix of the URL."""

    def __init__(self, url: str) -> None:
        """Use the bucket of `url`; raises StoreUnavailable if the environment's configuration cannot be used."""
        self.url = url
        # obstore ignores its variable for plain HTTP if it is given options.
        may_be_plain = os.environ.get(_ALLOW_HTTP, "").lower() in ("1", "true")
        options: Any = {
            "timeout": TIMEOUT,
            "connect_timeout": timedelta(seconds=5),
            "allow_http": may_be_plain,
        }
        retries: Any = {"max_retries": MAX_RETRIES, "retry_timeout": TIMEOUT}
        try:
            self._store: Any = from_url(url, client_options=options, retry_config=retries)
        except (BaseError, ValueError) as error:
            raise _unavailable(error) from None

    def put(self, path: str, content: bytes) -> None:
        """Write an object."""
        try:
            obstore.put(self._store, path, content)
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object by a conditional request (If-None-Match), which fails if the path has an object."""
        try:
            obstore.put(self._store, path, content, mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None
        return True

    def read(self, path: str) -> bytes:
        """Return the content of an object."""
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            raise ObjectMissing(f"{path}: no such object") from None
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def read_range(self, path: str, start: int, size_bytes: int) -> bytes:
        """Return a part of an object."""
        try:
            return bytes(obstore.get_range(self._store, path, start=start, length=size_bytes))
        except FileNotFoundError:
            raise ObjectMissing(f"{path}: no such object") from None
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def sign(self, paths: Sequence[str], valid_s: float, method: SignedMethod = "GET") -> Sequence[str]:
        """Return a URL for each object; the signature is made from the credentials, and nothing is checked."""
        try:
            return list(obstore.sign(self._store, method, list(paths), timedelta(seconds=valid_s)))
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def list(self, folder: str) -> Iterable[StoredObject]:
        """Return all objects below a folder; buckets list them by path."""
        try:
            for batch in obstore.list(self._store, prefix=folder or None):
                for found in batch:
                    yield StoredObject(found["path"], found["size"], found["last_modified"].timestamp())
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def names(self, folder: str, after: str) -> Iterable[str]:
        """Return the names of the objects in a folder that come after a name; Azure reads those before it, too."""
        try:
            for batch in obstore.list(self._store, prefix=folder, offset=f"{folder}/{after}", chunk_size=NAMES_AT_ONCE):
                for found in batch:
                    yield found["path"].rpartition("/")[2]
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None

    def delete(self, path: str) -> None:
        """Remove an object."""
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _unavailable(error) from None


def _unavailable(error: Exception) -> StoreUnavailable:
    """Return the error with the beginning of its message, without what could be a secret."""
    message = " ".join(str(error).split())
    return StoreUnavailable(_SECRETS.sub(r"\1...", message)[:MAX_MESSAGE])
