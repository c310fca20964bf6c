"""Values of the cost model: the work of a request, and the speed of an endpoint."""

from __future__ import annotations

from typing import Final


class Work:
    """The two parts of a request's work: time (s) on the reference accelerator, without other requests."""

    def __init__(self, prefill_s: float, decode_s: float) -> None:
        self.prefill_s = prefill_s
        """Time (s) until the first byte. Prefills of several requests run one after the other. An estimate covers the
        whole prompt; `actual_work` covers only the tokens that no cache spared."""
        self.decode_s = decode_s
        """Time (s) from the first byte to the end. The decodes of several requests run concurrently."""


NO_WORK: Final = Work(0.0, 0.0)


class Speed:
    """The speed of an endpoint, as factors that convert work to time on the endpoint."""

    def __init__(self, start_s: float, prefill: float, decode: float, crowding: float) -> None:
        self.start_s = start_s
        """Time (s) to the first byte besides prefill."""
        self.prefill = prefill
        """Time (s) on the endpoint per second of reference prefill."""
        self.decode = decode
        """Time (s) on the endpoint per second of reference decode, without `crowding`."""
        self.crowding = crowding
        """Time (s) added to `decode` for each stream on the endpoint, including the request's own stream."""
