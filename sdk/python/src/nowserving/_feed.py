"""The boards of one line, subscribed to once however many watch it in this process."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections import deque
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ._connection import Connection
from .errors import BadReply, ConnectionFailed, NowservingError, Unavailable
from .types import Board, LineEvent

#: How many boards a watcher may be behind: six seconds, at twenty boards a second.
_BEHIND_MAX = 128
#: How often a feed looks whether the connection was lost and made again, and whether anybody watches.
_CHECK_EVERY = 0.25

#: ``resync``: boards may have been missed, or the line has changed in a way that no board shows.
FeedEvent = Board | Literal["resync"]

T = TypeVar("T")


class Watcher:
    """One watcher's end of a feed. It ends when nobody holds it any more."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._events: deque[FeedEvent] = deque()
        self._wake = asyncio.Event()

    async def next(self, within: float) -> FeedEvent | None:
        """The next event, ``None`` if none comes within this time."""
        if not self._events:
            if self._feed.error is not None:
                raise self._feed.error
            try:
                async with asyncio.timeout(within):
                    await self._wake.wait()
            except TimeoutError:
                return None
        if not self._events:
            if self._feed.error is not None:
                raise self._feed.error
            return None
        event = self._events.popleft()
        if not self._events and self._feed.error is None:
            self._wake.clear()
        return event

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """Does this, unless the feed ends: a server reports a missing right when it likes."""
        working = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._feed.ended.wait())
        try:
            await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and self._feed.error is not None:
                raise self._feed.error
            return await working
        finally:
            working.cancel()
            ended.cancel()

    def push(self, event: FeedEvent) -> None:
        """Takes an event, or drops all that wait if they are too many."""
        if len(self._events) >= _BEHIND_MAX:
            self._events.clear()
            event = "resync"
        self._events.append(event)
        self._wake.set()

    def wake(self) -> None:
        """The feed has ended."""
        self._wake.set()


class Feed:
    """One line's subscriptions."""

    def __init__(self, connection: Connection, line: str) -> None:
        self._connection = connection
        self._board_subject = f"{connection.prefix}.event.{line}.board"
        self._line_subject = f"{connection.prefix}.event.{line}.line"
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._subscriptions: list[Subscription] = []
        self._subscribed: asyncio.Task[None] | None = None
        #: Why it has ended; ``None`` while it goes on.
        self.error: NowservingError | None = None
        self.ended = asyncio.Event()
        self._unheard = [connection.on_refused(subject, self._end) for subject in (self._board_subject, self._line_subject)]

    async def watch(self, within: float) -> Watcher:
        """A watcher. When this returns the server has the subscription.

        So the reply to a request that is sent afterwards is not older than any board that was missed.
        """
        watcher = Watcher(self)
        self._watchers.add(watcher)
        if self._subscribed is None:
            self._subscribed = asyncio.create_task(self._subscribe())
        try:
            async with asyncio.timeout(within):
                await asyncio.shield(self._subscribed)
        except TimeoutError as error:
            raise Unavailable("unavailable", "no connection to NATS to watch over") from error
        if self.error is not None:
            raise self.error
        return watcher

    async def _subscribe(self) -> None:
        connection = self._connection.nats
        try:
            for subject, take in ((self._board_subject, self._on_board), (self._line_subject, self._on_line)):
                self._subscriptions.append(await connection.subscribe(subject, cb=take))
            # Without an end while the connection is down: a caller waits no longer than it likes.
            while not await self._flushed():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        except nats.errors.Error:
            self._end(ConnectionFailed("unavailable", "the NATS connection is closed"))
            return
        self._checker = asyncio.create_task(self._check())

    async def _flushed(self) -> bool:
        connection = self._connection.nats
        if connection.is_closed:
            raise nats.errors.ConnectionClosedError
        if not connection.is_connected:
            return False
        try:
            await connection.flush(timeout=2)
        except (TimeoutError, nats.errors.TimeoutError):
            return False
        return True

    async def _check(self) -> None:
        connection = self._connection.nats
        # The library subscribes again by itself after a reconnect. Boards that were published meanwhile are lost.
        connects = connection.stats["reconnects"]
        while self.error is None:
            await asyncio.sleep(_CHECK_EVERY)
            if connection.is_closed:
                self._end(ConnectionFailed("unavailable", "the NATS connection is closed"))
            elif not self._watchers:
                self._end(ConnectionFailed("unavailable", "nobody watches"))
            elif connects != connection.stats["reconnects"]:
                connects = connection.stats["reconnects"]
                self._push("resync")

    def _end(self, error: NowservingError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.ended.set()
        for unheard in self._unheard:
            unheard()
        for watcher in list(self._watchers):
            watcher.wake()
        self._unsubscribing = asyncio.ensure_future(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        for subscription in self._subscriptions:
            try:
                await subscription.unsubscribe()
            except nats.errors.Error:
                return

    def _push(self, event: FeedEvent) -> None:
        for watcher in list(self._watchers):
            watcher.push(event)

    async def _on_board(self, message: Msg) -> None:
        try:
            self._push(Board.read(json.loads(message.data)))
        except (ValueError, BadReply):
            self._push("resync")

    async def _on_line(self, message: Msg) -> None:
        try:
            # A deleted line publishes no more boards: only a request shows the deletion.
            deleted = LineEvent.read(json.loads(message.data)).event == "deleted"
        except (ValueError, BadReply):
            deleted = True
        if deleted:
            self._push("resync")


class Feeds:
    """The feeds of one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[str, Feed] = {}

    async def watch(self, line: str, within: float) -> Watcher:
        """A watcher of this line."""
        feed = self._open.get(line)
        if feed is None or feed.error is not None:
            for ended in [name for name, feed in self._open.items() if feed.error is not None]:
                del self._open[ended]
            feed = self._open[line] = Feed(self._connection, line)
        return await feed.watch(within)
