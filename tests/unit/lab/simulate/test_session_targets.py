"""Agent sessions in simulations of regions: homes spare prefill, and a change of shares moves few sessions."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from lab.simulate.contenders import PENSTOCK
from lab.simulate.targets.scenarios import Scale
from lab.simulate.targets.session_targets import AGENT_SESSIONS, HELD, SAMPLED
from lab.traces.agent_sessions import SHARED_BLOCKS, Sessions, generate_session
from lab.traces.trace import BLOCK_TOKENS

SHORT = Scale(seeds=1, image_jobs=0, chat_s=0.0, step_s=0.0, sessions=2)


def test_sessions_with_homes_compute_their_prompts_once() -> None:
    ours, sampled, held = (AGENT_SESSIONS.measure(contender, SHORT, 1) for contender in (PENSTOCK, SAMPLED, HELD))
    assert ours["prefill_tokens"] < 1.2 * held["prefill_tokens"]
    assert sampled["prefill_tokens"] > 1.5 * held["prefill_tokens"]
    assert ours["ttft_mean_s"] < 0.8 * sampled["ttft_mean_s"]
    assert 0.08 < ours["moved"] < 0.12


def test_each_turn_of_a_session_begins_with_the_one_before() -> None:
    shape = Sessions(turns=(90, 100), max_prompt_tokens=40_000)
    turns, others = generate_session(3, Random(1), shape), generate_session(4, Random(2), shape)
    for earlier, later in pairwise(turns):
        assert later.prompt_tokens > earlier.prompt_tokens
        assert later.prefix_blocks[: len(earlier.prefix_blocks)] == earlier.prefix_blocks
    assert all(turn.prompt_tokens // BLOCK_TOKENS == len(turn.prefix_blocks) for turn in turns)
    assert 1 < len(turns) < 90, "the session ends at its maximum length"
    assert turns[-1].prompt_tokens <= 40_000
    shared = set(turns[-1].prefix_blocks) & set(others[-1].prefix_blocks)
    assert shared == set(range(SHARED_BLOCKS))
