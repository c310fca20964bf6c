"""The policy in force: the newest good state of the bundle's folder, else what the fleet obeys already."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path

import structlog

from control_plane.client import keys
from control_plane.client.codec import CodecError, decode
from control_plane.client.store import ConfigStore
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.errors import PolicyRefused
from control_plane.policy.folder import read_folder
from penstock.plan import RegionPlan
from penstock.policy import Policy

_log = structlog.get_logger(__name__)


class Origin(StrEnum):
    """Where the policy in force came from."""

    FOLDER = "folder"
    STORE = "store"
    """The folder has never been good since the start, so what the plan in force names was taken instead."""


class PolicySource:
    """Polls a folder; a bad state of it changes nothing but `refused`.

    Args:
        folder: the bundle.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judged: dict[str, str] | str | None = None
        self._before: dict[str, str] | str | None = None
        self.current: Policy | None = None
        self.origin: Origin | None = None
        self.refused: tuple[str, ...] = ()
        """What is wrong with the folder as it is now; empty when it is in force."""

    async def load(self) -> None:
        """Judge the folder as it is."""
        content = await asyncio.to_thread(self._read)
        self._before = content
        await self._judge(content)

    async def poll(self) -> None:
        """Judge the folder if it changed and two polls in a row have found it alike, so not while it is written."""
        content = await asyncio.to_thread(self._read)
        settled, self._before = content == self._before, content
        if settled and content != self._judged:
            await self._judge(content)

    async def adopt(self, store: ConfigStore) -> None:
        """Without any good policy since the start, take the one that the plan in force names.

        Raises:
            StoreError: the store cannot be read.
        """
        if self.current is not None:
            return
        policy = await _in_force(store)
        if policy is not None and self.current is None:
            self.current, self.origin = policy, Origin.STORE
            _log.warning("policy taken from the store, since the folder has none", digest=policy.digest())

    def _read(self) -> dict[str, str] | str:
        """The files, or what is wrong with them."""
        try:
            return read_folder(self._folder)
        except PolicyRefused as refused:
            return str(refused)

    async def _judge(self, content: dict[str, str] | str) -> None:
        self._judged = content
        try:
            if isinstance(content, str):
                self._refuse(content.splitlines())
            else:
                # In a thread, since a large bundle takes longer than a lease may wait to be renewed.
                self._accept(await asyncio.to_thread(compile_bundle, content))
        except PolicyRefused as refused:
            self._refuse([str(error) for error in refused.errors])

    def _accept(self, policy: Policy) -> None:
        self.current, self.origin, self.refused = policy, Origin.FOLDER, ()
        _log.info("policy accepted", digest=policy.digest(), folder=str(self._folder))

    def _refuse(self, errors: list[str]) -> None:
        self.refused = tuple(errors)
        kept = self.current.digest() if self.current is not None else None
        for error in errors:
            _log.error("policy refused", error=error, folder=str(self._folder), kept=kept)


async def _in_force(store: ConfigStore) -> Policy | None:
    """The policy that the newest plan in the store names, if both can be read."""
    plans = []
    for item in (await store.list(keys.PLANS)).items:
        try:
            plans.append(decode(item.value, RegionPlan))
        except CodecError as error:
            _log.warning("plan in force cannot be read", key=item.key, reason=str(error))
    if not plans:
        return None
    digest = max(plans, key=lambda plan: (plan.epoch, plan.generation)).policy_digest
    stored = await store.get(keys.policy(digest))
    try:
        policy = decode(stored.value, Policy) if stored is not None else None
    except CodecError as error:
        _log.warning("policy in force cannot be read", digest=digest, reason=str(error))
        return None
    if policy is not None and policy.digest() != digest:
        _log.warning("policy in force is not what its digest says", digest=digest)
        return None
    return policy
