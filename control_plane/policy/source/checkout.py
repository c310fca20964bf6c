"""A process of its own that reads one bundle out of one git repository: `repository.py` runs it, bounds it and ends it.

Whatever a repository holds, and however a server behaves, a process can be bounded in memory and ended at any moment;
a thread cannot. Only the newest commit is fetched, into memory, so nothing is left behind. Request and answer are JSON,
so no secret stands in a command line.
"""

from __future__ import annotations

import re
import resource
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
from dulwich.client import HTTPUnauthorized, get_transport_and_path
from dulwich.errors import GitProtocolError, HangupException, NotGitRepository
from dulwich.object_store import MemoryObjectStore
from dulwich.objects import S_ISGITLINK, Blob, Commit, ObjectID, Tag, Tree
from dulwich.repo import MemoryRepo

from control_plane.policy.bundle_errors import WHOLE_BUNDLE, PolicyError
from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES, MAX_FILE_BYTES, count_error, is_policy_file, text_of
from control_plane.policy.source.repository_url import shown, without_secrets
from penstock.policy.provenance import Provenance

MAX_PACK_BYTES = 64 << 20
"""What one fetch may bring; a commit of a repository for policy has some kilobytes."""

MAX_MEMORY_BYTES = 512 << 20
"""Address space of the process: an object may unfold to far more than was sent."""

MAX_TEXT = 200
"""Characters of a subject or an author that are kept."""

MAX_TAGS = 8
"""Tags that point at tags, followed to the commit."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Request(msgspec.Struct, frozen=True):
    """What to read."""

    url: str
    ref: str
    """Branch, tag, HEAD, or a commit's whole id; in a clone also `origin/main` and the like."""
    folder: str
    """Path of the bundle inside the repository; empty for its root."""
    known: str
    """What `ref` pointed at last time; where it still does, nothing is fetched."""


class Answer(msgspec.Struct, frozen=True):
    """What was read."""

    tip: str = ""
    """What `ref` points at: a commit, or a tag of one."""
    files: dict[str, str] = {}
    errors: tuple[PolicyError, ...] = ()
    provenance: Provenance | None = None
    problem: str = ""
    """Why nothing could be read; the rest is empty then."""


class Unfit(Exception):
    """The repository cannot be read, or has no such ref; the message says why."""


class _Unchanged(Exception):
    """The ref points where it did."""


def read(request: Request) -> Answer:
    """Fetch the commit that the ref points at, and read the bundle out of it.

    Raises:
        Unfit: there is no such repository or ref, or it is larger than it may be.
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
                raise Unfit(
                    f"one commit brings more than {MAX_PACK_BYTES} bytes: keep policy in a repository of its own"
                )
            return pack.write(data)

        try:
            client.fetch_pack(path, want, repository.get_graph_walker(), write, depth=1)
        except _Unchanged:
            return Answer(tip=request.known)
        except KeyError:
            raise Unfit(f"has no commit {request.ref}") from None
        pack.seek(0)
        objects.add_thin_pack(pack.read, None)
    return _bundle(repository, chosen[0], request)


def _tip(refs: Mapping[Any, ObjectID], ref: str) -> ObjectID:
    """What a branch or tag points at; else HEAD, what a clone knows of its origin's branches, or a commit itself."""
    names = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"]
    found = [refs[name.encode()] for name in names if refs.get(name.encode())]
    if len(found) == 2:
        raise Unfit(f"{ref} is both a branch and a tag: write refs/heads/{ref} or refs/tags/{ref}")
    if found:
        return found[0]
    beside = refs.get((ref if ref == "HEAD" else f"refs/remotes/{ref}").encode())
    if beside is not None:
        return beside
    if _COMMIT.fullmatch(ref):
        return ObjectID(ref.encode())
    branches = sorted(name[11:].decode("utf-8", "replace") for name in refs if name.startswith(b"refs/heads/"))
    there = f"it has {', '.join(branches[:10])}" if branches else "it has no branch at all"
    raise Unfit(f"has no branch or tag {ref}: {there}")


def _bundle(repository: MemoryRepo, tip: ObjectID, request: Request) -> Answer:
    if tip not in repository:
        raise Unfit(f"has no commit {request.ref}")
    commit = repository[tip]
    for _ in range(MAX_TAGS):
        if isinstance(commit, Tag):
            commit = repository[commit.object[1]]
    if not isinstance(commit, Commit):
        raise Unfit(f"{request.ref} points at no commit")
    provenance = Provenance(
        repository=shown(request.url),
        ref=request.ref,
        commit=commit.id.decode(),
        author=_one_line(commit.author),
        authored_at=float(commit.author_time),
        subject=_one_line(commit.message),
    )
    files, errors = _files(repository, commit, request.folder)
    return Answer(tip.decode(), {} if errors else files, tuple(errors), provenance)


def _files(repository: MemoryRepo, commit: Commit, folder: str) -> tuple[dict[str, str], list[PolicyError]]:
    tree = repository[commit.tree]
    for step in PurePosixPath(folder).parts:
        mode, sha = tree[step.encode()] if isinstance(tree, Tree) and step.encode() in tree else (0, b"")
        if not stat.S_ISDIR(mode):
            remedy = "name the folder of the repository that holds the policy files"
            return {}, [PolicyError(folder, 0, "", "is no folder in this commit", remedy)]
        tree = repository[ObjectID(sha)]
    assert isinstance(tree, Tree)
    entries = [entry for entry in tree.items() if is_policy_file(entry.path.decode("utf-8", "replace"))]
    wrong = count_error(len(entries), folder or shown(commit.id.decode()))
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
    return text_of(name, content)


def _one_line(text: bytes) -> str:
    first = text.decode("utf-8", "replace").strip().partition("\n")[0]
    return "".join(letter if letter.isprintable() else " " for letter in first)[:MAX_TEXT]


def answer(request: Request) -> Answer:
    """What can be read, or in one line, without secrets, why nothing can."""
    try:
        return read(request)
    except Unfit as error:
        return Answer(problem=str(error))
    except MemoryError:
        return Answer(problem=f"needs more than {MAX_MEMORY_BYTES} bytes of memory to read")
    except HTTPUnauthorized:
        return Answer(problem="the server wants other credentials than those of the URL")
    except NotGitRepository:
        return Answer(problem="there is no git repository")
    except HangupException:
        return Answer(problem="the server hung up")
    except (GitProtocolError, OSError) as error:
        return Answer(problem=_worded(error, request.url))
    except Exception as error:
        # Whatever a broken repository or a library's defect brings about, it is this revision that cannot be read.
        return Answer(problem=f"cannot be read: {type(error).__name__}: {_worded(error, request.url)}")


def _worded(error: Exception, url: str) -> str:
    return _one_line(without_secrets(str(error), url).encode()) or type(error).__name__


def main() -> None:
    """Bound this process, answer the request on standard input on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = sys.stdin.buffer.read()
    if not asked:
        # Started ahead, and whoever would have asked has ended.
        return
    request = msgspec.json.decode(asked, type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(answer(request)))


if __name__ == "__main__":
    main()
