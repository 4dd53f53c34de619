"""A token's exact place, as an iterator."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._feed import Watcher
from ._view import View
from .errors import NowservingError
from .types import Status

if TYPE_CHECKING:
    from .line import Line

#: After a transient error the next status is asked after this long, up to twice of it.
_RETRY_DELAY = 0.5


class Tracker:
    """A token's :class:`~nowserving.Status` whenever it changes; see :meth:`nowserving.Line.track`.

    It polls only while it is iterated over: break out of the loop, and the token is recycled in the end.
    """

    def __init__(self, line: Line, ticket: str, on_error: Callable[[NowservingError], None] | None) -> None:
        self._line = line
        #: The ticket of the token as it is now.
        self.ticket = ticket
        self._on_error = on_error
        # Subscribed to on the first step, not before.
        self._watcher: Watcher | None = None
        self._view = View(time.monotonic())
        self._over = False

    def __aiter__(self) -> Tracker:
        return self

    async def __anext__(self) -> Status:
        while not self._over:
            try:
                return await self.step()
            except NowservingError as error:
                if not error.is_transient:
                    raise
                if self._on_error is not None:
                    self._on_error(error)
        raise StopAsyncIteration

    async def step(self) -> Status:
        """The next status. Raises transient errors, too; it can be called again after one."""
        if self._over:
            raise StopAsyncIteration
        try:
            status = await self._next()
        except NowservingError as error:
            if not error.is_transient:
                self._end()
            raise
        if status.state == "gone":
            self._end()
        return status

    def _end(self) -> None:
        self._over = True
        self._watcher = None

    async def _next(self) -> Status:
        view = self._view
        while True:
            if self._watcher is None:
                self._watcher = await self._line.watcher()
            left = view.poll_at - time.monotonic()
            if left <= 0:
                changed = await self._poll(self._watcher)
            else:
                event = await self._watcher.next(left)
                changed = None
                if event == "resync":
                    view.resync(time.monotonic())
                elif event is not None:
                    changed = view.board(event, time.monotonic())
            if changed is not None:
                return changed
            # An iteration that never waits would starve others.
            await asyncio.sleep(0)

    async def _poll(self, watcher: Watcher) -> Status | None:
        # Boards that arrive meanwhile wait in the feed.
        try:
            asking = self._line.status(self.ticket, holes=self._view.wants_holes)
            status = await watcher.unless_ended(asking)
        except NowservingError:
            self._view.poll_at = time.monotonic() + _RETRY_DELAY * (1 + random.random())
            raise
        if status.ticket is not None:
            # The old one works only as long as the line remembers the move.
            self.ticket = status.ticket
        return self._view.status(status, time.monotonic())
