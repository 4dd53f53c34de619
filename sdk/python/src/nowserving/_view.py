"""A token as a watcher knows it from statuses and boards, and when it asks again. No I/O.

The rules are those of ``docs/protocol/events.md``, "How a watcher computes its place".
"""

from __future__ import annotations

import dataclasses
import random

from ._place import Place
from .types import Board, Status

#: After a change of leader or a lost connection all watchers of a line must ask. They spread that over this long.
RESYNC_SPREAD = 0.25
#: Polls are at least this far apart, whatever ``poll_after_ms`` says.
_POLL_MIN = 0.02
#: Replies show one deadline with differences up to this: clocks are rounded, and those of two nodes differ.
_SAME_DEADLINE_MS = 1_000


class View:
    """What is known of a token."""

    def __init__(self, now: float) -> None:
        #: The status that was given out last; ``None`` before the first one.
        self.last: Status | None = None
        #: When to ask for the next status.
        self.poll_at = now
        #: It asks before ``poll_after_ms`` is over.
        self.asks_soon = True
        self._place = Place(0)
        #: The last board was one before the draw.
        self._undrawn = False

    @property
    def wants_holes(self) -> bool:
        """Whether the next status must list the holes."""
        return self._place.version is None

    def status(self, status: Status, now: float) -> Status | None:
        """Takes a status. Returns it if its holder must see it."""
        self.poll_at = now + max(status.poll_after_ms / 1000, _POLL_MIN)
        self.asks_soon = False
        last = self.last
        moved = last is not None and (last.lane, last.token) != (status.lane, status.token)
        if status.state != "waiting":
            # That is so whatever the version: a token never waits again.
            changed = last is None or moved or _has_changed(last, status)
            self.last = dataclasses.replace(status, holes=None)
            return self.last if changed else None
        # A board has overtaken it, or a leader that does not know yet that it was replaced has sent it.
        stale = last is not None and last.version > status.version
        if stale and moved:
            return None
        if last is None or moved:
            self._place = Place(status.token)
        if status.holes is not None:
            self._place.sync(status.version, status.admitted_through, status.holes)
        elif moved:
            # The next status lists the holes of the new lane.
            self._poll_soon(now)
        if stale:
            return None
        changed = last is None or moved or _has_changed(last, status)
        self.last = dataclasses.replace(status, holes=None)
        return self.last if changed else None

    def resync(self, now: float) -> None:
        """Boards may have been missed."""
        self._place.forget()
        self._poll_soon(now)

    def board(self, board: Board, now: float) -> Status | None:
        """Takes a board. Returns the status that follows from it if its holder must see it."""
        last = self.last
        if last is None or last.state != "waiting":
            return None
        if board.incarnation != last.incarnation:
            self.resync(now)
            return None
        was_undrawn, self._undrawn = self._undrawn, board.undrawn
        if board.undrawn:
            self._place.forget()
            if last.position is None:
                return None
            self.last = dataclasses.replace(last, position=None, ahead=None, turn=None, version=board.version)
            return self.last
        if was_undrawn:
            # All have new places now, and must not ask at once.
            self.resync(now)
            return None
        lane = next((lane for lane in board.lanes if lane.lane == last.lane), None)
        if lane is None or lane.holes is None:
            # Too many holes to list; or the lane was removed, and its tokens are in other lanes.
            self.resync(now)
            return None
        was_known = self._place.version is not None
        if board.whole and last.token < lane.next_token:
            seen = self._place.whole_board(board.version, lane.admitted_through, lane.holes)
        else:
            seen = self._place.board(board.version, board.prev_version, lane.admitted_through, lane.holes)
        if seen == "position" and board.version > last.version:
            return self._at(last, board, lane.admitted_through)
        if seen == "passed":
            if last.position is None:
                # It was drawn, as all were.
                self._poll_soon(now)
            else:
                self.poll_at, self.asks_soon = now, True
        elif seen == "gap" and was_known:
            # Only the first gap is a reason to ask early: where a status cannot list the holes either, every board is a
            # gap.
            self._poll_soon(now)
        return None

    def _at(self, last: Status, board: Board, admitted_through: int) -> Status | None:
        position = self._place.position
        if position is None:
            return None
        # Past the cap the status has the cap as its position, and the token only comes nearer.
        cap = last.position if last.position_capped else None
        capped = cap is not None and position > cap
        if cap is not None:
            position = min(position, cap)
        changed = (last.position, last.position_capped) != (position, capped)
        self.last = dataclasses.replace(
            last,
            position=position,
            position_capped=capped,
            ahead=position - 1,
            # Boards do not tell how many of other lanes go first.
            turn=position if len(board.lanes) == 1 and not capped else None,
            admitted_through=admitted_through,
            version=board.version,
            at_ms=board.at_ms,
        )
        return self.last if changed else None

    def _poll_soon(self, now: float) -> None:
        self.asks_soon = True
        self.poll_at = min(self.poll_at, now + random.random() * RESYNC_SPREAD)


def _has_changed(last: Status, status: Status) -> bool:
    def shown(status: Status) -> tuple[object, ...]:
        return (
            status.state,
            status.position,
            status.position_capped,
            status.turn,
            status.call_ahead,
            status.epoch,
            status.reason,
        )

    if shown(last) != shown(status):
        return True
    if last.expires_at_ms is None or status.expires_at_ms is None:
        return False
    return abs(last.expires_at_ms - status.expires_at_ms) > _SAME_DEADLINE_MS
