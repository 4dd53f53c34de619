"""The places of all tokens of a line, computed from events alone: for a push service that may only subscribe."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from ._place import RANGES_MAX, holes_before, is_gap, union
from .types import Board, Lane, LineEvent, TokenEvent


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a token stands, as far as events say."""

    #: ``position``: it waits, at ``position``. ``passed``: it waits no longer. ``unknown``: the next whole board says, at
    #: the latest a minute later.
    standing: Literal["position", "passed", "unknown"]
    #: 1 = next.
    position: int | None = None


_PASSED = Standing("passed")
_UNKNOWN = Standing("unknown")


@dataclass(slots=True)
class _Lane:
    admitted_through: int = 0
    next_token: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    #: All holes between the pointers are known.
    whole: bool = False
    #: Numbers from ``next_token`` on that entered, with their positions; ``None``: it waits no longer.
    newcomers: dict[int, int | None] = field(default_factory=dict)

    def take(self, lane: Lane, keep: bool) -> None:
        self.admitted_through = lane.admitted_through
        self.next_token = lane.next_token
        # The board knows of the others.
        self.newcomers = {token: at for token, at in self.newcomers.items() if token >= lane.next_token}
        known = self.holes if keep else []
        self.holes = union([*known, *(lane.holes or ())], lane.admitted_through, lane.next_token)
        self.sums = []
        count = 0
        for first, last in self.holes:
            self.sums.append(count)
            count += last - first + 1
        self.whole = count + lane.waiting == max(0, lane.next_token - 1 - lane.admitted_through)
        if len(self.holes) > RANGES_MAX:
            self.holes, self.sums, self.whole = [], [], False

    def standing(self, token: int) -> Standing:
        if token in self.newcomers:
            position = self.newcomers[token]
            return _PASSED if position is None else Standing("position", position)
        if token >= self.next_token:
            return _UNKNOWN
        if token <= self.admitted_through:
            return _PASSED
        if not self.whole:
            return _UNKNOWN
        before = holes_before(self.holes, self.sums, token)
        return _PASSED if before is None else Standing("position", token - self.admitted_through - before)


class PlacesFromEvents:
    """The places of all tokens of one line.

    :meth:`message` takes whatever comes on ``nowserving.event.<line>.>``, :meth:`standing` says where a token stands. No
    I/O happens here: subscribe with the client of your choice. Memory grows with the holes and with the newcomers since
    the last board, not with the tokens. ::

        places = PlacesFromEvents()

        async def on_event(message: nats.aio.msg.Msg) -> None:
            places.message(message.subject, message.data)

        await nc.subscribe("nowserving.event.shop-1.>", cb=on_event)
    """

    def __init__(self) -> None:
        self._incarnation = 0
        #: Of the last board.
        self.version = 0
        self._lanes: dict[str, _Lane] = {}

    def message(self, subject: str, data: bytes) -> bool:
        """Takes an event as it comes over NATS. Returns whether it was a board that was new."""
        words = subject.split(".")
        event = json.loads(data)
        if words[-1] == "board":
            return self.board(Board.read(event))
        if words[-1] == "line":
            self.line(LineEvent.read(event))
        elif len(words) >= 3 and words[-3] == "token":
            self.token(TokenEvent.read(event))
        return False

    def board(self, board: Board) -> bool:
        """Takes a board. Returns whether it was new."""
        if not self._is_of(board.incarnation) or board.version < self.version:
            return False
        if board.version == self.version and not board.whole:
            return False
        keep = not board.whole and not is_gap(self.version, board.prev_version)
        self.version = board.version
        if board.undrawn:
            self._lanes.clear()
            return True
        old, self._lanes = self._lanes, {}
        for lane in board.lanes:
            known = old.pop(lane.lane, None) or _Lane()
            known.take(lane, keep)
            self._lanes[lane.lane] = known
        return True

    def token(self, event: TokenEvent) -> None:
        """Takes an event of a token."""
        if not self._is_of(event.incarnation) or event.version <= self.version:
            return
        if event.event in ("entered", "position") and event.position is not None:
            position: int | None = event.position
        elif event.event in ("admitted", "gone", "moved"):
            position = None
        else:
            return
        lane = self._lanes.setdefault(event.lane, _Lane())
        if event.token >= lane.next_token:
            lane.newcomers[event.token] = position

    def line(self, event: LineEvent) -> None:
        """Takes an event of the line. A line that was put back from a backup has other holes."""
        if self._is_of(event.incarnation) and event.event == "restored":
            self._lanes.clear()

    def standing(self, lane: str, token: int) -> Standing:
        """Where a token stands."""
        known = self._lanes.get(lane)
        return _UNKNOWN if known is None else known.standing(token)

    def _is_of(self, incarnation: int) -> bool:
        """A later creation of the line begins with nothing; events of an earlier one are dropped."""
        if incarnation > self._incarnation:
            self._incarnation, self.version = incarnation, 0
            self._lanes.clear()
        return incarnation == self._incarnation
