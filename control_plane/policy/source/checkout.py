"""The process that reads one bundle from a git repository; `repository.py` starts it, limits its time and kills it.

Unlike a thread, a process can be limited in memory and killed at any time, regardless of the content of the repository
and the behaviour of its server. Only the newest commit is fetched, into an unnamed temporary file and memory, so no
files remain. The request is JSON on standard input, so that no secret is on the command line; the result is JSON on
standard output.
"""

from __future__ import annotations

import re
import resource
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import msgspec
from dulwich.client import HTTPUnauthorized, get_transport_and_path
from dulwich.errors import GitProtocolError, HangupException, NotGitRepository
from dulwich.object_store import MemoryObjectStore
from dulwich.objects import S_ISGITLINK, Blob, Commit, ObjectID, Tag, Tree
from dulwich.repo import MemoryRepo

from control_plane.policy.bundle_errors import WHOLE_BUNDLE, PolicyError
from control_plane.policy.bundle_limits import (
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    count_error,
    decode_file,
    is_policy_file,
)
from control_plane.policy.source.repository_url import without_credentials, without_secrets
from penstock.policy.provenance import Provenance

MAX_PACK_BYTES = 64 << 20
"""Maximum size (bytes) of one fetch; a commit of a policy repository has some kilobytes."""

MAX_MEMORY_BYTES = 512 << 20
"""Maximum address space (bytes) of the process: a compressed object may expand to far more bytes than were sent."""

MAX_TEXT = 200
"""Maximum length, in characters, of a subject, an author, or an error message; the remainder is cut off."""

MAX_TAGS = 8
"""Maximum length of a chain of tags that point at tags."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


class CheckoutRequest(msgspec.Struct, frozen=True):
    """The bundle to read."""

    url: str
    ref: str
    """Branch, tag, HEAD, or a full commit id; in a clone also a remote branch such as `origin/main`."""
    folder: str
    """Path of the bundle inside the repository; empty for its root."""
    known: str
    """Object that `ref` pointed at in the last read, empty before the first; if unchanged, nothing is fetched."""


class CheckoutResult(msgspec.Struct, frozen=True):
    """The bundle, or the reason why the bundle could not be read."""

    tip: str = ""
    """Object that `ref` points at: a commit, or a tag."""
    files: dict[str, str] = {}
    errors: tuple[PolicyError, ...] = ()
    provenance: Provenance | None = None
    problem: str = ""
    """Reason why the bundle could not be read; all other fields are then empty. Empty after a successful read."""


class CheckoutError(Exception):
    """The repository cannot be read, or has no such ref; the message has the reason."""


class _Unchanged(Exception):
    """The ref points at the known object."""


def read(request: CheckoutRequest) -> CheckoutResult:
    """Fetch the commit that the ref points at, and return its bundle.

    Raises:
        CheckoutError: the repository has no such ref, or the commit is too large. Exceptions of the git client for an
            unreachable or missing repository are not converted.
    """
    chosen: list[ObjectID] = []

    def want(refs: Mapping[Any, ObjectID], depth: int | None = None) -> list[ObjectID]:
        tip = _tip(refs, request.ref)
        if tip.decode() == request.known:
            raise _Unchanged
        chosen.append(tip)
        return [tip]

    repository = MemoryRepo()
    objects = repository.object_store
    assert isinstance(objects, MemoryObjectStore)
    client, path = get_transport_and_path(request.url)
    with tempfile.TemporaryFile() as pack:

        def write(data: bytes) -> int:
            if pack.tell() + len(data) > MAX_PACK_BYTES:
                raise CheckoutError(
                    f"the commit has more than {MAX_PACK_BYTES} bytes: keep policy in a repository of its own"
                )
            return pack.write(data)

        try:
            client.fetch_pack(path, want, repository.get_graph_walker(), write, depth=1)
        except _Unchanged:
            return CheckoutResult(tip=request.known)
        except KeyError:
            raise CheckoutError(f"has no commit {request.ref}") from None
        pack.seek(0)
        objects.add_thin_pack(pack.read, None)
    return _bundle(repository, chosen[0], request)


def _tip(refs: Mapping[Any, ObjectID], ref: str) -> ObjectID:
    """Return the object of a branch or tag, else of HEAD or a clone's remote branch, else the commit of this id."""
    names = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"]
    found = [refs[name.encode()] for name in names if refs.get(name.encode())]
    if len(found) == 2:
        raise CheckoutError(f"{ref} is both a branch and a tag: write refs/heads/{ref} or refs/tags/{ref}")
    if found:
        return found[0]
    other = refs.get((ref if ref == "HEAD" else f"refs/remotes/{ref}").encode())
    if other is not None:
        return other
    if _COMMIT.fullmatch(ref):
        return ObjectID(ref.encode())
    branches = sorted(name[11:].decode("utf-8", "replace") for name in refs if name.startswith(b"refs/heads/"))
    there = f"it has {', '.join(branches[:10])}" if branches else "it has no branches"
    raise CheckoutError(f"has no branch or tag {ref}: {there}")


def _bundle(repository: MemoryRepo, tip: ObjectID, request: CheckoutRequest) -> CheckoutResult:
    if tip not in repository:
        raise CheckoutError(f"has no commit {request.ref}")
    commit = repository[tip]
    for _ in range(MAX_TAGS):
        if isinstance(commit, Tag):
            commit = repository[commit.object[1]]
    if not isinstance(commit, Commit):
        raise CheckoutError(f"{request.ref} does not point at a commit")
    provenance = Provenance(
        repository=without_credentials(request.url),
        ref=request.ref,
        commit=commit.id.decode(),
        author=_one_line(commit.author),
        authored_at=float(commit.author_time),
        subject=_one_line(commit.message),
    )
    files, errors = _files(repository, commit, request.folder)
    return CheckoutResult(tip.decode(), {} if errors else files, tuple(errors), provenance)


def _files(repository: MemoryRepo, commit: Commit, folder: str) -> tuple[dict[str, str], list[PolicyError]]:
    tree = repository[commit.tree]
    for step in PurePosixPath(folder).parts:
        mode, sha = tree[step.encode()] if isinstance(tree, Tree) and step.encode() in tree else (0, b"")
        if not stat.S_ISDIR(mode):
            remedy = "name the folder of the repository that holds the policy files"
            return {}, [PolicyError(folder, 0, "", "is not a folder of this commit", remedy)]
        tree = repository[ObjectID(sha)]
    assert isinstance(tree, Tree)
    entries = [entry for entry in tree.items() if is_policy_file(entry.path.decode("utf-8", "replace"))]
    wrong = count_error(len(entries), folder or commit.id.decode())
    if wrong is not None:
        return {}, [wrong]
    files: dict[str, str] = {}
    errors: list[PolicyError] = []
    total = 0
    for entry in entries:
        name = entry.path.decode("utf-8", "replace")
        text = _text(repository, name, entry.mode, entry.sha)
        if isinstance(text, PolicyError):
            errors.append(text)
            continue
        files[name] = text
        total += len(text)
        if total > MAX_BUNDLE_BYTES:
            problem = f"larger than {MAX_BUNDLE_BYTES} bytes in all"
            return {}, [PolicyError(WHOLE_BUNDLE, 0, "", problem, "make the bundle smaller")]
    return files, errors


def _text(repository: MemoryRepo, name: str, mode: int, sha: Any) -> str | PolicyError:
    if stat.S_ISLNK(mode):
        return PolicyError(name, 0, "", "is a symbolic link", "commit the file itself")
    if S_ISGITLINK(mode):
        return PolicyError(name, 0, "", "is a submodule", "commit the files themselves")
    blob = repository[sha] if stat.S_ISREG(mode) else None
    content = blob.as_raw_string()[: MAX_FILE_BYTES + 1] if isinstance(blob, Blob) else None
    return decode_file(name, content)


def _one_line(text: bytes) -> str:
    first = text.decode("utf-8", "replace").strip().partition("\n")[0]
    return "".join(letter if letter.isprintable() else " " for letter in first)[:MAX_TEXT]


def result_of(request: CheckoutRequest) -> CheckoutResult:
    """Return the bundle, or the reason why the bundle cannot be read: one line, without secrets."""
    try:
        return read(request)
    except CheckoutError as error:
        return CheckoutResult(problem=str(error))
    except MemoryError:
        return CheckoutResult(problem=f"needs more than {MAX_MEMORY_BYTES} bytes of memory to read")
    except HTTPUnauthorized:
        return CheckoutResult(problem="the server rejects the credentials of the URL")
    except NotGitRepository:
        return CheckoutResult(problem="there is no git repository")
    except HangupException:
        return CheckoutResult(problem="the server closed the connection")
    except (GitProtocolError, OSError) as error:
        return CheckoutResult(problem=_worded(error, request.url))
    except Exception as error:
        # A corrupt repository or a defect of the library may raise any exception, which concerns this revision only.
        return CheckoutResult(problem=f"cannot be read: {type(error).__name__}: {_worded(error, request.url)}")


def _worded(error: Exception, url: str) -> str:
    return _one_line(without_secrets(str(error), url).encode()) or type(error).__name__


def main(output: BinaryIO) -> None:
    """Limit this process, read the request from standard input, and write the result to `output`."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    encoded = sys.stdin.buffer.read()
    if not encoded:
        # This process was started ahead, and the parent process has exited without a request.
        return
    request = msgspec.json.decode(encoded, type=CheckoutRequest)
    output.write(msgspec.json.encode(result_of(request)))
    output.flush()
