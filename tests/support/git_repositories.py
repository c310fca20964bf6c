"""Real git repositories for tests, with commits of given files, and an HTTP server for repositories."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from dulwich.objects import Blob, Commit, Tag, Tree
from dulwich.repo import Repo
from dulwich.server import DictBackend
from dulwich.web import HTTPGitApplication, WSGIRequestHandlerLogger

FILE, LINK, SUBMODULE = 0o100644, 0o120000, 0o160000
AUTHOR = b"Penstock Tests <tests@example.invalid>"

Content = bytes | tuple[int, bytes]


class PolicyRepository:
    """A bare repository to which a test commits whole trees."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self._repo = Repo.init_bare(str(path), default_branch=b"main")
        self._made = 0

    def commit(
        self,
        files: Mapping[str, Content],
        *,
        branch: str = "main",
        message: bytes = b"Change the policy",
        parents: list[bytes] | None = None,
        author: bytes = AUTHOR,
    ) -> str:
        """Commit a tree of exactly `files`, by path, and return the commit id. `parents=[]` starts a new history."""
        ref = b"refs/heads/" + branch.encode()
        if parents is None:
            parents = [self._repo.refs[ref]] if ref in self._repo.refs else []
        self._made += 1
        commit = Commit()
        commit.tree = self._tree(files)
        commit.parents = parents  # type: ignore[assignment]
        commit.author = commit.committer = author
        commit.author_time = commit.commit_time = 1_700_000_000 + self._made
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = message
        self._repo.object_store.add_object(commit)
        self._repo.refs[ref] = commit.id  # type: ignore[index]
        return commit.id.decode()

    def tag(self, name: str, commit: str) -> None:
        """Create an annotated tag."""
        tag = Tag()
        tag.name = name.encode()
        tag.object = (Commit, commit.encode())  # type: ignore[assignment]
        tag.tagger = AUTHOR
        tag.tag_time, tag.tag_timezone, tag.message = 1_700_000_000, 0, b"a release"
        self._repo.object_store.add_object(tag)
        self._repo.refs[b"refs/tags/" + name.encode()] = tag.id  # type: ignore[index]

    def reset(self, commit: str, branch: str = "main") -> None:
        """Set a branch to any commit, as a forced push does."""
        self._repo.refs[b"refs/heads/" + branch.encode()] = commit.encode()  # type: ignore[index, assignment]

    def delete(self, branch: str = "main") -> None:
        """Delete a branch."""
        del self._repo.refs[b"refs/heads/" + branch.encode()]  # type: ignore[arg-type]

    def _tree(self, files: Mapping[str, Content]) -> Any:
        folders: dict[str, dict[str, Content]] = {}
        tree = Tree()
        for path, content in files.items():
            head, _, rest = path.partition("/")
            if rest:
                folders.setdefault(head, {})[rest] = content
                continue
            mode, data = content if isinstance(content, tuple) else (FILE, content)
            if mode == SUBMODULE:
                tree.add(head.encode(), mode, data)  # type: ignore[arg-type]
                continue
            blob = Blob.from_string(data)
            self._repo.object_store.add_object(blob)
            tree.add(head.encode(), mode, blob.id)
        for name, inside in folders.items():
            tree.add(name.encode(), 0o040000, self._tree(inside))
        self._repo.object_store.add_object(tree)
        return tree.id


def bundle_files(folder: Path, under: str = "", **replaced: bytes) -> dict[str, bytes]:
    """The files of a bundle's folder for a commit; `replaced` contains other contents by name without suffix."""
    files = {f"{under}{path.name}": path.read_bytes() for path in sorted(folder.glob("*.yaml"))}
    return files | {f"{under}{name}.yaml": content for name, content in replaced.items()}


class _Quiet(WSGIRequestHandlerLogger):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def git_over_http(repository: PolicyRepository, password: str = "") -> Iterator[str]:
    """Serve a repository with a real HTTP server, which requires `password` if given, and yield its URL."""
    git = HTTPGitApplication(DictBackend({"/policy": Repo(str(repository.path))}))
    wanted = "Basic " + base64.b64encode(f"penstock:{password}".encode()).decode()

    def application(environ: Any, start_response: Any) -> Any:
        if password and environ.get("HTTP_AUTHORIZATION") != wanted:
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="git"')])
            return [b""]
        return git(environ, start_response)

    server = make_server("127.0.0.1", 0, application, WSGIServer, _Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/policy"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
