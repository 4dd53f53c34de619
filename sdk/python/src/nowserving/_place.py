"""The place of one token, computed from boards alone. No I/O.

A board says how far admission has come (``admitted_through``) and which tokens stopped waiting since the board before
(``holes``). All holes between ``admitted_through`` and a token give the token's exact position, however many others
wait::

    position = token - admitted_through - holes between the two
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal

#: The most ranges of holes that are kept for one token. Beyond it the place comes from polls alone, so that memory
#: stays bounded even if every second one of millions leaves.
RANGES_MAX = 65_536

Seen = Literal["stale", "gap", "position", "passed"]


def union(ranges: Iterable[tuple[int, int]], after: int, before: int) -> list[tuple[int, int]]:
    """Ranges in order, without overlaps and not adjacent, of numbers between ``after`` and ``before``."""
    disjoint: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        first, last = max(first, after + 1), min(last, before - 1)
        if disjoint and first <= disjoint[-1][1] + 1:
            if last > disjoint[-1][1]:
                disjoint[-1] = (disjoint[-1][0], last)
        elif first <= last:
            disjoint.append((first, last))
    return disjoint


def is_gap(known: int, prev_version: int) -> bool:
    """Whether boards are missing between the version ``known`` and a board that builds on ``prev_version``."""
    return prev_version > known or prev_version == 0


class Place:
    """The exact place of one token in its lane: unknown at first, and after a gap."""

    __slots__ = ("_count", "_holes", "admitted_through", "passed", "token", "version")

    def __init__(self, token: int) -> None:
        self.token = token
        #: Of the state that is known; ``None`` while none is.
        self.version: int | None = None
        self.admitted_through = 0
        self.passed = False
        self._holes: list[tuple[int, int]] = []
        self._count = 0

    @property
    def position(self) -> int | None:
        """1 = next. ``None`` while it is not known, and once the token waits no longer."""
        if self.version is None or self.passed:
            return None
        position = self.token - self.admitted_through - self._count
        return position if position > 0 else None

    def forget(self) -> None:
        """Makes the place unknown until the next status."""
        self.version = None
        self._holes, self._count = [], 0

    def sync(self, version: int, admitted_through: int, holes: Iterable[tuple[int, int]]) -> None:
        """Takes a status that was asked with ``holes``. One that is older than what is known is ignored."""
        if self.version is not None and self.version > version:
            return
        self.version = version
        self.passed = admitted_through >= self.token
        self.admitted_through = admitted_through
        self._dig(holes)

    def board(self, version: int, prev_version: int, admitted_through: int, holes: Iterable[tuple[int, int]]) -> Seen:
        """Takes a board: of the token's own lane ``admitted_through`` and ``holes``."""
        if self.version is None:
            return "gap"
        if version <= self.version:
            return "stale"
        if is_gap(self.version, prev_version):
            self.forget()
            return "gap"
        self.version = version
        holes = list(holes)
        if admitted_through >= self.token or _contains(holes, self.token):
            self.passed = True
        if self.passed:
            return "passed"
        # Pointers fall only over numbers that nobody holds, so never while this token waits behind them.
        self.admitted_through = max(self.admitted_through, admitted_through)
        self._dig(self._holes + holes)
        return "gap" if self.position is None else "position"

    def whole_board(self, version: int, admitted_through: int, holes: Iterable[tuple[int, int]]) -> Seen:
        """Takes a board that lists all holes. The token must have entered before it."""
        if self.version is not None and version <= self.version:
            return "stale"
        holes = list(holes)
        self.sync(version, admitted_through, holes)
        self.passed |= _contains(holes, self.token)
        if self.passed:
            return "passed"
        return "gap" if self.position is None else "position"

    def _dig(self, holes: Iterable[tuple[int, int]]) -> None:
        self._holes = union(holes, self.admitted_through, self.token)
        self._count = sum(last - first + 1 for first, last in self._holes)
        if len(self._holes) > RANGES_MAX:
            self.forget()


def _contains(holes: Iterable[tuple[int, int]], token: int) -> bool:
    return any(first <= token <= last for first, last in holes)


def holes_before(holes: list[tuple[int, int]], sums: list[int], token: int) -> int | None:
    """How many numbers of disjoint ranges are before ``token``; ``None`` if it is in one of them.

    ``sums[n]``: how many numbers the ranges before the ``n``-th have.
    """
    after = bisect_right(holes, token, key=lambda hole: hole[0])
    if after == 0:
        return 0
    first, last = holes[after - 1]
    return None if token <= last else sums[after - 1] + last - first + 1
