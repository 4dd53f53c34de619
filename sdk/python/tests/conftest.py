from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .processes import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Callable[[], Cluster]]:
    """One cluster for all tests that need one; it starts with the first."""
    started: list[Cluster] = []

    def start() -> Cluster:
        if not started:
            started.append(Cluster())
        return started[0]

    yield start
    for each in started:
        each.stop()
