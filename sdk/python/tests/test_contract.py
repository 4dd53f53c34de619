"""The scenarios that every SDK runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from .processes import Cluster
from .runner import run, scenarios


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_scenario(path: Path, cluster: Callable[[], Cluster]) -> None:
    asyncio.run(run(path, cluster))
