"""Policy from real git repositories: a commit is accepted or rejected as a whole, for any content and any fault."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest
from dulwich import porcelain
from dulwich.porcelain import NoneStream

from control_plane.policy.bundle_limits import MAX_FILE_BYTES
from control_plane.policy.source.policy_source import PolicySource
from control_plane.policy.source.readers import SourceUnreadable
from control_plane.policy.source.repository import RepositoryReader
from control_plane.policy.source.revision import Origin
from tests.support.git_repositories import LINK, SUBMODULE, PolicyRepository, bundle_files, git_over_http
from tests.support.paths import PLANET

SPILLOVER = (PLANET / "spillover.yaml").read_bytes()
FULLER = SPILLOVER.replace(b"0.8", b"0.7")


@pytest.fixture
def repository(tmp_path: Path) -> PolicyRepository:
    return PolicyRepository(tmp_path / "policy.git")


def reader(url: str | Path, ref: str = "main", folder: str = "", timeout_s: float = 30.0) -> RepositoryReader:
    return RepositoryReader(str(url), ref, folder, poll_s=10.0, timeout_s=timeout_s)


def target(source: PolicySource) -> float:
    assert source.current is not None
    return source.current.spillover.target_utilisation


async def why_not(repository_reader: RepositoryReader) -> str:
    with pytest.raises(SourceUnreadable) as raised:
        await repository_reader.read()
    return str(raised.value)


async def test_a_commit_is_in_force_with_its_author_time_and_subject(repository: PolicyRepository) -> None:
    commit = repository.commit(bundle_files(PLANET), message=b"Begin with the planet\n\nAnd a body.\n")
    source = PolicySource(reader(repository.path))
    await source.load()
    assert target(source) == 0.8
    assert source.origin is Origin.REPOSITORY
    reported = source.provenance
    assert reported is not None
    assert (reported.commit, reported.author) == (commit, "Penstock Tests <tests@example.invalid>")
    assert (reported.subject, reported.authored_at, reported.ref) == ("Begin with the planet", 1_700_000_001.0, "main")


async def test_a_push_is_in_force_after_one_poll_and_an_unchanged_commit_is_not_compiled(
    repository: PolicyRepository,
) -> None:
    repository.commit(bundle_files(PLANET))
    source = PolicySource(reader(repository.path))
    await source.load()
    before = source.current
    await source.poll()
    assert source.current is before
    repository.commit(bundle_files(PLANET, spillover=FULLER))
    await source.poll()
    assert target(source) == 0.7


async def test_an_invalid_commit_changes_nothing_and_the_next_valid_one_does(repository: PolicyRepository) -> None:
    repository.commit(bundle_files(PLANET))
    source = PolicySource(reader(repository.path))
    await source.load()
    good = source.provenance
    poisoned = repository.commit(bundle_files(PLANET, spillover=SPILLOVER.replace(b"0.8", b"")))
    await source.poll()
    assert target(source) == 0.8
    assert source.provenance == good
    assert source.refused_provenance is not None
    assert source.refused_provenance.commit == poisoned
    (error,) = source.refused
    assert error.startswith("spillover.yaml:4: target_utilisation: ")
    repository.commit(bundle_files(PLANET, spillover=FULLER))
    await source.poll()
    assert target(source) == 0.7
    assert (source.refused, source.refused_provenance) == ((), None)
    assert [bool(result.digest) for result in source.results] == [True, False, True]


BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n" % (i, i, *[i - 1] * 8) for i in range(ord("b"), ord("j"))
)


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("huge.yaml", b"a" * (10 << 20), "huge.yaml: larger than 1048576 bytes"),
        ("bomb.yaml", BOMB, "bomb.yaml:1: the anchor &a is not allowed"),
        ("latin.yaml", b"a: 1\nb: \xff\n", "latin.yaml:2: is not UTF-8"),
        ("copy.yaml", SPILLOVER, "too many documents of kind Spillover"),
        ("link.yaml", (LINK, b"/etc/passwd"), "link.yaml: is a symbolic link"),
        ("other.yaml", (SUBMODULE, b"1" * 40), "other.yaml: is a submodule"),
        ("run.sh", b"true", "run.sh: is not a .yaml file"),
        ("deep/in.yaml", SPILLOVER, "deep: is not a .yaml file"),
        ("deep.yaml", b"[" * 100_000 + b"\n", "deep.yaml:1: nested deeper than"),
    ],
    # Names by content would contain characters that no environment variable can have.
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_content_is_refused_with_its_file(
    repository: PolicyRepository, name: str, content: bytes | tuple[int, bytes], reported: str
) -> None:
    repository.commit(bundle_files(PLANET))
    source = PolicySource(reader(repository.path))
    await source.load()
    before = source.current
    repository.commit({**bundle_files(PLANET), name: content})
    await source.poll()
    assert source.current is before
    assert any(reported in error for error in source.refused), source.refused


async def test_a_repository_with_a_fifo_in_place_of_a_file_is_given_up(repository: PolicyRepository) -> None:
    """The process that reads it is killed, and the accepted policy stays."""
    repository.commit(bundle_files(PLANET))
    source = PolicySource(reader(repository.path))
    await source.load()
    (head,) = (file for file in repository.path.rglob("HEAD") if file.parent.name in (".git", repository.path.name))
    head.unlink()
    os.mkfifo(head)
    blocked = PolicySource(reader(repository.path, timeout_s=1.0))
    await blocked.load()
    assert "not read within 1 s" in blocked.unreadable
    assert source.current is not None


async def test_readmes_and_hidden_files_are_ignored(repository: PolicyRepository) -> None:
    repository.commit({**bundle_files(PLANET), "README.md": b"\xff", ".github/workflows/ci.yml": b"x"})
    assert set((await reader(repository.path).read()).files) == {path.name for path in PLANET.glob("*.yaml")}


async def test_too_many_files_are_refused(repository: PolicyRepository) -> None:
    repository.commit({f"{number}.yaml": b"x: 1" for number in range(201)})
    assert "has 201 files" in str((await reader(repository.path).read()).errors)


async def test_remote_branches_of_a_clone_head_and_commit_ids_can_be_read_too(
    repository: PolicyRepository, tmp_path: Path
) -> None:
    first = repository.commit(bundle_files(PLANET))
    porcelain.clone(str(repository.path), str(tmp_path / "clone"), checkout=True, errstream=NoneStream()).close()
    second = repository.commit(bundle_files(PLANET, spillover=FULLER))
    for ref in ("origin/main", "refs/remotes/origin/main", "HEAD", first):
        bundle = await reader(tmp_path / "clone", ref).read()
        assert bundle.provenance is not None
        assert (bundle.provenance.commit, bundle.provenance.ref) == (first, ref)
    for ref in ("HEAD", second, first):
        bundle = await reader(repository.path, ref).read()
        assert bundle.provenance is not None
        assert bundle.provenance.commit == (first if ref == first else second)
    with git_over_http(repository) as url:
        assert (await reader(url, "HEAD").read()).provenance == msgspec.structs.replace(
            (await reader(repository.path, "HEAD").read()).provenance, repository=url
        )
    assert "has no commit 11111" in await why_not(reader(repository.path, "1" * 40))
    assert "it has main" in await why_not(reader(repository.path, "origin/main"))


async def test_a_folder_of_the_repository_is_the_bundle(repository: PolicyRepository) -> None:
    repository.commit({**bundle_files(PLANET, under="policies/planet/"), "main.py": b"x"})
    assert (await reader(repository.path, folder="policies/planet").read()).files
    missing = await reader(repository.path, folder="policies/venus").read()
    assert [error.problem for error in missing.errors] == ["is not a folder of this commit"]


async def test_a_forced_push_to_an_old_commit_restores_its_policy(repository: PolicyRepository) -> None:
    first = repository.commit(bundle_files(PLANET))
    repository.commit(bundle_files(PLANET, spillover=FULLER))
    source = PolicySource(reader(repository.path))
    await source.load()
    repository.reset(first)
    await source.poll()
    assert target(source) == 0.8
    rewritten = repository.commit(bundle_files(PLANET, spillover=FULLER), parents=[])
    await source.poll()
    assert source.provenance is not None
    assert (target(source), source.provenance.commit) == (0.7, rewritten)


async def test_a_merge_commit_is_read_by_its_tree(repository: PolicyRepository) -> None:
    base = repository.commit(bundle_files(PLANET))
    side = repository.commit(bundle_files(PLANET, spillover=FULLER), branch="side", parents=[base.encode()])
    merge = repository.commit(
        bundle_files(PLANET, spillover=FULLER), message=b"Merge side", parents=[base.encode(), side.encode()]
    )
    source = PolicySource(reader(repository.path))
    await source.load()
    assert source.provenance is not None
    assert (target(source), source.provenance.commit) == (0.7, merge)


async def test_a_tag_is_followed_to_its_commit_and_branches_to_theirs(repository: PolicyRepository) -> None:
    tagged = repository.commit(bundle_files(PLANET))
    repository.tag("v1", tagged)
    later = repository.commit(bundle_files(PLANET, spillover=FULLER), branch="next")
    assert (await reader(repository.path, "v1").read()).provenance.commit == tagged  # type: ignore[union-attr]
    assert (await reader(repository.path, "next").read()).provenance.commit == later  # type: ignore[union-attr]
    repository.commit(bundle_files(PLANET), branch="v1")
    assert "both a branch and a tag" in await why_not(reader(repository.path, "v1"))


async def test_a_deleted_branch_keeps_the_last_good_policy_and_is_reported(repository: PolicyRepository) -> None:
    repository.commit(bundle_files(PLANET))
    repository.commit(bundle_files(PLANET), branch="other")
    source = PolicySource(reader(repository.path))
    await source.load()
    repository.delete()
    await source.poll()
    assert target(source) == 0.8
    assert source.unreadable.endswith("has no branch or tag main: it has other")
    assert source.refused == ()
    repository.commit(bundle_files(PLANET, spillover=FULLER))
    await source.poll()
    assert (target(source), source.unreadable) == (0.7, "")


async def test_a_missing_repository_is_one_clear_error(tmp_path: Path, repository: PolicyRepository) -> None:
    assert "there is no git repository" in await why_not(reader(tmp_path / "nothing"))
    assert "it has no branches" in await why_not(reader(repository.path))


async def test_a_repository_with_a_torn_object_changes_nothing(repository: PolicyRepository) -> None:
    repository.commit(bundle_files(PLANET))
    source = PolicySource(reader(repository.path))
    await source.load()
    commit = repository.commit(bundle_files(PLANET, spillover=FULLER))
    loose = repository.path / "objects" / commit[:2] / commit[2:]
    whole = loose.read_bytes()
    loose.chmod(0o644)
    loose.write_bytes(whole[: len(whole) // 2])
    await source.poll()
    assert target(source) == 0.8
    assert source.unreadable
    loose.write_bytes(whole)
    await source.poll()
    assert (target(source), source.unreadable) == (0.7, "")


async def test_an_object_that_decompresses_to_far_more_is_rejected(repository: PolicyRepository) -> None:
    repository.commit({**bundle_files(PLANET), "zeros.yaml": b"\0" * (120 << 20)})
    source = PolicySource(reader(repository.path))
    await source.load()
    assert source.current is None
    assert "of memory" in source.unreadable or "zeros.yaml: larger than" in str(source.refused)


async def test_reads_over_http_with_a_password_that_is_never_shown(repository: PolicyRepository) -> None:
    commit = repository.commit(bundle_files(PLANET))
    with git_over_http(repository, "hunter2-hunter2") as url:
        with_password = url.replace("http://", "http://penstock:hunter2-hunter2@")
        over_http = reader(with_password)
        bundle = await over_http.read()
        assert bundle.provenance is not None
        assert (bundle.provenance.commit, bundle.provenance.repository) == (commit, url)
        assert await over_http.read() is bundle
        assert "credentials" in await why_not(reader(url))
        wrong = await why_not(reader(with_password.replace("hunter2-h", "letmein-h")))
        assert "letmein" not in wrong
        repository.commit(bundle_files(PLANET, spillover=FULLER))
        assert await over_http.read() is not bundle
    gone = await why_not(over_http)
    assert "hunter2" not in gone + over_http.place
    assert gone.startswith(f"{url} main: ")


async def test_a_server_that_never_responds_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/policy"
        async with asyncio.timeout(30.0):
            assert "not read within 1 s" in await why_not(reader(url, timeout_s=1.0))


def test_the_oversized_test_files_exceed_the_limit() -> None:
    assert MAX_FILE_BYTES < 10 << 20
