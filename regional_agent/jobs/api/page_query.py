"""The query of a list: `after`, `limit`, `order` and `purpose`, or Anthropic's `after_id`, `before_id` and `limit`."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import BadInput
from regional_agent.jobs.storage.page import Page

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100


def page_of(request: Request) -> Page:
    """Return the page that a request asks for. Raises BadInput."""
    try:
        query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"), max_num_fields=16)
    except ValueError:
        raise BadInput(400, "invalid_query", "the query has more than 16 fields") from None
    after = (query.get("after") or query.get("after_id") or [""])[-1]
    before, limit = query.get("before_id", [""])[-1], query.get("limit", [str(DEFAULT_LIMIT)])[-1]
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:6]) <= 10_000:
        raise BadInput(400, "invalid_limit", "`limit` is not a number from 1 to 10000", "limit")
    order, purpose = query.get("order", ["desc"])[-1], query.get("purpose", [""])[-1]
    if order not in ("asc", "desc"):
        raise BadInput(400, "invalid_order", "`order` is neither asc nor desc", "order")
    return Page(min(int(limit[:6]), MAX_LIMIT), after[:64], before[:64], order == "asc", purpose[:64])
