"""The rate-limit headers of OpenAI's and Anthropic's APIs: what is left of a sender's budgets per minute.

`limit` is the amount that can be used at once, `remaining` what is left of it, and `reset` when it is whole again if no
request follows. Of two budgets that limit the same, the one with less left is described.

Sources: https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers and
https://platform.claude.com/docs/en/api/rate-limits#response-headers.
"""

from __future__ import annotations

from time import gmtime, monotonic, strftime
from time import time as wall_time
from typing import Final

from penstock.policy.kinds.budgets import BudgetUnit
from penstock.routes.route import ErrorFormat
from penstock.tenancy.budget_meter import BudgetMeter
from penstock.tenancy.budget_reservations import SenderBudgets
from penstock.tenancy.exceeded_budget import BudgetState

_Names = dict[BudgetUnit, tuple[bytes, bytes, bytes]]


def _openai(name: bytes) -> tuple[bytes, bytes, bytes]:
    return b"x-ratelimit-limit-" + name, b"x-ratelimit-remaining-" + name, b"x-ratelimit-reset-" + name


def _anthropic(name: bytes) -> tuple[bytes, bytes, bytes]:
    prefix = b"anthropic-ratelimit-" + name
    return prefix + b"-limit", prefix + b"-remaining", prefix + b"-reset"


_NAMES: Final[dict[ErrorFormat, _Names]] = {
    ErrorFormat.OPENAI: {BudgetUnit.REQUESTS: _openai(b"requests"), BudgetUnit.TOKENS: _openai(b"tokens")},
    ErrorFormat.ANTHROPIC: {
        BudgetUnit.REQUESTS: _anthropic(b"requests"),
        BudgetUnit.TOKENS: _anthropic(b"tokens"),
        BudgetUnit.INPUT_TOKENS: _anthropic(b"input-tokens"),
        BudgetUnit.OUTPUT_TOKENS: _anthropic(b"output-tokens"),
    },
}
"""The headers of each API with the limit, the rest and the reset of a unit; no header describes other units."""

_ANTHROPIC: Final = ErrorFormat.ANTHROPIC
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

MAX_CACHED_TIMES: Final = 1024

_durations: dict[int, bytes] = {}
_instants: dict[int, bytes] = {}
"""The ends of header lines with a time, by seconds: formatting one takes as long as everything else here."""


class _Lines:
    """The header lines about the budgets of one unit, but for their numbers."""

    def __init__(self, meters: list[BudgetMeter], names: tuple[bytes, bytes, bytes]) -> None:
        limit, remaining, reset = names
        self.meters = meters
        self.prefixes = [b"%b: %d\r\n%b: " % (limit, meter.budget.largest_burst, remaining) for meter in meters]
        self.reset = b"\r\n%b: " % reset


class _Cached:
    """The lines of one sender."""

    def __init__(self, meters: list[BudgetMeter], error_format: ErrorFormat) -> None:
        self.meters = meters
        self.error_format = error_format
        self.lines: list[_Lines] = []
        for unit, names in _NAMES.get(error_format, {}).items():
            of = [meter for meter in meters if meter.key.unit == unit]
            if of:
                self.lines.append(_Lines(of, names))


def rate_limit_lines(budgets: SenderBudgets, error_format: ErrorFormat) -> bytes:
    """Return the header lines of a response to a sender; empty for APIs without such headers."""
    cached = budgets.header_cache
    if (
        not isinstance(cached, _Cached)
        or cached.meters is not budgets.meters
        or cached.error_format is not error_format
    ):
        cached = budgets.header_cache = _Cached(budgets.meters, error_format)
    entries = cached.lines
    if not entries:
        return b""
    is_anthropic = error_format is _ANTHROPIC
    now = monotonic()
    wall = wall_time() if is_anthropic else 0.0
    lines = b""
    for entry in entries:
        index, least = 0, entry.meters[0]
        remaining = least.remaining(now)
        for other in range(1, len(entry.meters)):
            left = entry.meters[other].remaining(now)
            if left < remaining:
                index, least, remaining = other, entry.meters[other], left
        reset_s = least.reset_s(now)
        until = _instant(wall + reset_s) if is_anthropic else _duration(reset_s)
        lines += b"%b%d%b%b" % (entry.prefixes[index], remaining, entry.reset, until)
    return lines


def lines_of_states(states: tuple[BudgetState, ...], error_format: ErrorFormat) -> bytes:
    """Return the header lines of the response that refuses a request."""
    lines = b""
    for unit, (limit, remaining, reset) in _NAMES.get(error_format, {}).items():
        of = [state for state in states if state.unit == unit]
        if of:
            least = min(of, key=lambda state: state.remaining)
            is_anthropic = error_format is _ANTHROPIC
            until = _instant(wall_time() + least.reset_s) if is_anthropic else _duration(least.reset_s)
            lines += b"%b: %d\r\n%b: %d\r\n" % (limit, least.limit, remaining, least.remaining)
            lines += b"%b: %b" % (reset, until)
    return lines


def _duration(seconds: float) -> bytes:
    """Return a duration as OpenAI writes it, such as `6m0s` and `120ms`, and the end of the line."""
    if seconds < 1.0:
        return b"%dms\r\n" % round_up(seconds * 1000.0)
    whole = round_up(seconds)
    text = _durations.get(whole)
    if text is None:
        minutes, rest = divmod(whole, 60)
        hours, minutes = divmod(minutes, 60)
        text = b"%ds\r\n" % rest
        if whole >= 60:
            text = b"%dm" % minutes + text
        if hours:
            text = b"%dh" % hours + text
        _keep(_durations, whole, text)
    return text


def _instant(wall: float) -> bytes:
    """Return a Unix time (s) as in RFC 3339, and the end of the line."""
    whole = round_up(wall)
    text = _instants.get(whole)
    if text is None:
        text = strftime("%Y-%m-%dT%H:%M:%SZ\r\n", gmtime(whole)).encode()
        _keep(_instants, whole, text)
    return text


def round_up(number: float) -> int:
    """Return the next whole number of a positive number; `ceil` takes three times as long, compiled."""
    whole = int(number)
    return whole + 1 if number > whole else whole


def _keep(cache: dict[int, bytes], key: int, text: bytes) -> None:
    if len(cache) >= MAX_CACHED_TIMES:
        cache.clear()
    cache[key] = text
