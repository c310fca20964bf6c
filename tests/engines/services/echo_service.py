"""A custom service on LitServe: `echo_service.py PORT` answers /predict with the text in capitals after some time."""

from __future__ import annotations

import sys
import time

import litserve


class EchoApi(litserve.LitAPI):
    """Takes `text` and `seconds`, and returns `output`."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request: dict[str, object]) -> tuple[str, float]:
        """The text, and the time (s) that it takes."""
        return str(request["text"]), float(request.get("seconds", 0.0))

    def predict(self, asked: tuple[str, float]) -> str:
        """The text in capitals."""
        text, seconds = asked
        time.sleep(seconds)
        return text.upper()

    def encode_response(self, output: str) -> dict[str, str]:
        """The JSON of the response."""
        return {"output": output}


if __name__ == "__main__":
    litserve.LitServer(EchoApi(), accelerator="cpu", workers_per_device=2).run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, num_api_servers=1
    )
