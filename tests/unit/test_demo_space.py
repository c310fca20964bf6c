"""A disk that is too full for a planet is named before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.demo.demo import check_space
from lab.servers.errors import ServerError


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    check_space(tmp_path, 0)
    with pytest.raises(ServerError, match=f"{tmp_path}: [0-9]+ MB are free, .* set TMPDIR"):
        check_space(tmp_path, 10**18)
