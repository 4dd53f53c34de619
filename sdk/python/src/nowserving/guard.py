"""A concurrency guard over a line: at most the line's ``seats`` handlers run at once, over all hosts.

Each :meth:`Guard.acquire` is one visit to the line, under a key of its own, carried out by a task of its own::

    enter ─► wait ─► claim ─► hold (renew, renew, …) ─► complete
      └────────┴───────┴─ the caller is gone, or nothing comes of it ─► leave

So the caller can be cancelled at any moment, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Literal, TypeVar

from ._health import GuardHealth, next_probe
from ._lease import Lease
from .errors import (
    BadArgument,
    BadReply,
    ConnectionFailed,
    NoSlot,
    NowservingError,
    Refused,
    SeatLost,
    Unavailable,
)
from .line import Line
from .types import Info, Status

_log = logging.getLogger("nowserving.guard")

#: After an unanswered call the next one comes after this long, up to twice of it.
_RETRY_DELAY = 0.25
#: A seat or a place in line is given back for at least this long, if the cluster is there and does not take it.
_GIVE_BACK = 60.0
_GIVE_BACK_MAX = 86_400.0
#: An ``enter`` without an answer takes effect within its attempt's timeout (2 s) + 1 s + 5 s of tolerance for clocks after
#: it was sent, or never. A second is added for an attempt that was sent late.
_UNKNOWN_FOR = 9.0
#: A read that decides whether the cluster is away may take this long.
_ASK_FOR = 1.0

#: Refusals that say that there is nothing to give back.
_FREE_ALREADY = frozenset(
    {"token_gone", "epoch_stale", "ticket_invalid", "token_not_found", "line_not_found", "line_closed"}
)

T = TypeVar("T")


class Slot:
    """The right to run one handler; see :meth:`Guard.acquire`."""

    def __init__(self, kind: Literal["seat", "allowed"], waited: float, status: Status | None = None) -> None:
        #: ``seat``: one of the line's seats. ``allowed``: the cluster was away, and ``on_unavailable`` is ``allow``.
        self.kind = kind
        #: From the call to the slot, in seconds.
        self.waited = waited
        #: The fencing number of a seat: it grows with every slot that the line gives. ``None`` if the cluster was away.
        self.epoch = status.epoch if status else None
        #: The number in the line's lane.
        self.token = status.token if status else None
        #: The lane.
        self.lane = status.lane if status else None
        self._lost = asyncio.Event()
        self._tell_lost: Callable[[], None] | None = None
        self._end = asyncio.Event()
        self._given_back = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        """The seat was lost while the slot was held."""
        return self._lost.is_set()

    async def lost(self) -> None:
        """Returns when the seat is lost; never, if the slot is no seat or is given back before.

        An operator kicked it, ``checkout_max_ms`` is over, or it could not be renewed in time. The handler should stop
        then.
        """
        await self._lost.wait()

    async def release(self) -> None:
        """Gives the slot back, and returns when the cluster knows, which can take as long as the cluster is away.

        The seat comes free also if this is cancelled.
        """
        self._end.set()
        await self._given_back.wait()

    def _lose(self) -> None:
        self._lost.set()
        if self._tell_lost is not None:
            self._tell_lost()

    def __repr__(self) -> str:
        return f"Slot(kind={self.kind!r}, lane={self.lane!r}, token={self.token!r}, epoch={self.epoch!r})"


class Guard:
    """At most a line's ``seats`` handlers at once. ::

        guard = Guard(client.line("reports"))
        async with guard.acquire() as slot:
            ...  # cancelled if the seat is lost, and `SeatLost` is raised

    The line is made by an operator, with ``release_on_claim`` off (the default). A slot is given back also by a process
    that dies: its seats are free again after the line's ``checkout_timeout_ms``.

    ``on_unavailable``: what happens to callers while the cluster does not answer. ``allow``: they run, without a limit.
    ``deny``: they are refused as :class:`~nowserving.NoSlot` ``unavailable``, and slots that are held are lost when their
    time is up by this process's own clock. ``patience``: how many seconds the cluster may take to answer a call.
    ``max_wait``: how many seconds :meth:`acquire` takes at most. ``in_flight_max``: how many visits of this process may be
    under way, those included that are being given back.
    """

    def __init__(
        self,
        line: Line,
        *,
        on_unavailable: Literal["allow", "deny"] = "allow",
        patience: float = 5.0,
        max_wait: float | None = None,
        in_flight_max: int = 16_384,
    ) -> None:
        if on_unavailable not in ("allow", "deny"):
            raise BadArgument("bad_request", "on_unavailable: must be allow or deny")
        self._line = line.with_deadline(patience)
        self._on_unavailable = on_unavailable
        self._patience = patience
        self._max_wait = max_wait
        self._in_flight_max = in_flight_max
        self._health = GuardHealth()
        self._draining = False
        self._visits: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._outside = 0
        self._outside_changed = asyncio.Condition()

    async def check(self) -> Info:
        """Whether the line is there and fits a guard: for a service's start.

        Raises ``line_not_found``; :class:`~nowserving.BadArgument` if ``release_on_claim`` is set, which gives a seat
        back at once; :class:`~nowserving.Unavailable` within ``patience``.
        """
        info = await self._line.info()
        if info.settings.get("release_on_claim"):
            raise _released_on_claim(self._line.name)
        return info

    def acquire(self, *, lane: str | None = None, label: str = "guard", max_wait: float | None = None) -> Acquiring:
        """Waits for a slot, in the order of the line: ``async with guard.acquire() as slot``.

        The body is cancelled if the seat is lost, and :class:`~nowserving.SeatLost` is raised then. Or ``await`` it and
        call :meth:`Slot.release`. A caller that is cancelled leaves the line.

        ``label``: begins the key under which operators see the visit, 1 to 64 bytes. ``max_wait``: in place of the
        guard's.

        Raises :class:`~nowserving.NoSlot`; and what is wrong with the set-up: ``line_not_found``,
        :class:`~nowserving.Forbidden`.
        """
        if not 1 <= len(label.encode()) <= 64:
            raise BadArgument("bad_request", "label: 1 to 64 bytes")
        return Acquiring(self, lane, label, self._max_wait if max_wait is None else max_wait)

    @property
    def is_away(self) -> bool:
        """Whether the cluster is away, so that ``on_unavailable`` decides."""
        return self._health.is_away

    async def drained(self) -> None:
        """Returns when all slots are given back and the cluster knows: for a service that stops.

        From the call on, :meth:`acquire` is refused as ``busy``. While the cluster is away this does not return: limit
        it by a timeout.
        """
        self._draining = True
        while self._visits:
            await asyncio.wait(set(self._visits))
        async with self._outside_changed:
            await self._outside_changed.wait_for(lambda: self._outside == 0)

    # ---- one caller

    async def decide(self, lane: str | None, label: str, max_wait: float | None) -> Slot:
        """Not for callers."""
        begin = time.monotonic()
        while True:
            if not self._health.is_away:
                slot = await self._visit(lane, label, begin, max_wait)
                if slot is not None:
                    return slot
            if self._on_unavailable == "deny":
                raise NoSlot("unavailable", "the cluster that admits does not answer")
            self._takes_callers()
            return self._allowed(time.monotonic() - begin)

    def _takes_callers(self) -> None:
        if self._draining:
            raise NoSlot("busy", "the guard is draining")

    async def _visit(self, lane: str | None, label: str, begin: float, max_wait: float | None) -> Slot | None:
        """One visit to the line. ``None`` if the cluster does not answer."""
        self._takes_callers()
        if len(self._visits) >= self._in_flight_max:
            raise NoSlot("busy", "too many are under way in this process")
        visit = _Visit(self, self._line, lane, f"{label}-{secrets.token_hex(16)}", begin)
        _keep(self._visits, visit.run())
        left = None if max_wait is None else max(0.0, begin + max_wait - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return await asyncio.shield(visit.outcome)
        except TimeoutError:
            visit.abandon()
            raise _too_late(begin) from None
        except asyncio.CancelledError:
            visit.abandon()
            raise

    def _allowed(self, waited: float) -> Slot:
        slot = Slot("allowed", waited)
        self._outside += 1
        _keep(self._background, self._outside_until(slot))
        return slot

    async def _outside_until(self, slot: Slot) -> None:
        try:
            await slot._end.wait()
        finally:
            slot._given_back.set()
            async with self._outside_changed:
                self._outside -= 1
                self._outside_changed.notify_all()

    @property
    def patience(self) -> float:
        """How many seconds the cluster may take to answer a call."""
        return self._patience

    # ---- whether the cluster is away

    async def noted(self, call: Awaitable[T]) -> T:
        """Makes a call that changes the line, and notes whether it is answered. Not for callers."""
        sent = time.monotonic()
        try:
            done = await call
        except Refused:
            # The leader decided: it has a quorum, or had one a moment ago.
            self._health.answered()
            raise
        except NowservingError as error:
            self.note_failed(sent, error)
            raise
        self._health.answered()
        return done

    def note_failed(self, sent: float, error: NowservingError) -> None:
        """A call that began at ``sent`` has failed. Not for callers."""
        if not _is_away(error):
            return
        verdict = self._health.failed(sent)
        if verdict == "ask":
            _keep(self._background, self._ask(error))
        elif verdict == "away":
            self._go_away(error)

    async def _ask(self, error: NowservingError) -> None:
        if not await self.answers():
            self._go_away(error)

    async def answers(self) -> bool:
        """Whether a read is answered. Not for callers."""
        try:
            await self._line.with_deadline(min(_ASK_FOR, self._patience)).info()
        except NowservingError as error:
            return not _is_away(error)
        return True

    def _go_away(self, error: NowservingError) -> None:
        if self._health.set_away():
            _log.warning("line %s: the cluster is away, %s: %s", self._line.name, self._on_unavailable, error)
            _keep(self._background, self._probe())

    async def _probe(self) -> None:
        """Enters the line and leaves it again, under one key: only a write shows that writes are served."""
        key = f"guard-probe-{secrets.token_hex(16)}"
        may_be_in_line = False
        while self._health.is_away:
            now = time.monotonic()
            await asyncio.sleep(next_probe(now) - now)
            if not self._health.is_away:
                break
            try:
                entered = await self._line.enter(key)
            except NowservingError as error:
                may_be_in_line |= error.may_have_happened
                if isinstance(error, ConnectionFailed):
                    # Nobody can ask any more: what waits for an answer ends.
                    self._health.forget()
                    return
                if _is_unanswered(error):
                    continue
                # Callers are to see it.
                self._health.answered()
            else:
                self._health.answered()
                if entered.ticket is not None:
                    await self.leave(entered.ticket)
            _log.info("line %s: the cluster is back", self._line.name)
        if may_be_in_line:
            await self.leave_by_key(key)

    # ---- giving back

    async def leave(self, ticket: str) -> None:
        """Not for callers."""
        await self.give_back(_GIVE_BACK, lambda: self.noted(self._line.leave(ticket)))

    async def leave_by_key(self, key: str) -> None:
        """It may have entered, or may still enter. Not for callers."""
        await asyncio.sleep(_UNKNOWN_FOR)
        found = await self.give_back(_GIVE_BACK, lambda: self._line.find(key))
        if found is not None and found.ticket is not None:
            await self.leave(found.ticket)

    async def give_back(self, least: float, call: Callable[[], Awaitable[Status]]) -> Status | None:
        """Repeats the call until the cluster answers: while it is away, and then for ``least``. Not for callers."""
        gives_up = time.monotonic() + least
        while True:
            try:
                return await call()
            except NowservingError as error:
                if error.code in _FREE_ALREADY:
                    return None
                is_closed = isinstance(error, ConnectionFailed)
                if is_closed or not _is_unanswered(error) or (not self.is_away and time.monotonic() >= gives_up):
                    what = "given up: a seat or a place in line has to time out"
                    _log.warning("line %s: %s: %s", self._line.name, what, error)
                    return None
            if self.is_away:
                await self._health.back()
                gives_up = time.monotonic() + least
            await _pause()

    def own_end(self, lease: Lease) -> float | None:
        """When a seat is lost by this process's clock, ``None`` for never. Not for callers.

        With ``deny`` no handler runs without a seat, so it ends with its claim. Else only an answer that named the end
        for good counts: an outage must not cost a service its handlers.
        """
        by_clock = self._on_unavailable == "deny" or lease.renew_at is None
        return lease.expires_at if by_clock else None


class Acquiring(Awaitable[Slot]):
    """A slot that is being waited for: ``await`` it, or use it with ``async with``."""

    def __init__(self, guard: Guard, lane: str | None, label: str, max_wait: float | None) -> None:
        self._guard = guard
        self._ask = (lane, label, max_wait)
        self._slot: Slot | None = None
        self._cancelled = False

    def __await__(self) -> Generator[Any, None, Slot]:
        """The slot."""
        return self._guard.decide(*self._ask).__await__()

    async def __aenter__(self) -> Slot:
        task = asyncio.current_task()
        slot = await self
        self._slot = slot
        self._task = task
        self._cancelling = task.cancelling() if task else 0
        slot._tell_lost = self._cancel
        if slot.is_lost:
            self._cancel()
        return slot

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        slot = self._slot
        if slot is None:
            return
        slot._tell_lost = None
        slot._end.set()
        if self._cancelled and self._task is not None:
            by_others = self._task.uncancel() > self._cancelling
            if kind is asyncio.CancelledError and not by_others:
                raise SeatLost from error
            return
        if kind is None or kind is not asyncio.CancelledError:
            # So a program that ends now leaves no seat behind. While the cluster is away, the visit's task goes on.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._guard.patience):
                    await slot.release()


class _CallerGone(Exception):
    pass


class _Visit:
    """One visit to the line, from entering to giving the seat back."""

    def __init__(self, guard: Guard, line: Line, lane: str | None, key: str, begin: float) -> None:
        self._guard = guard
        self._line = line
        self._lane = lane
        self._key = key
        self._begin = begin
        self._ticket = ""
        self._gone = asyncio.Event()
        #: The slot, an error, or ``None`` if the cluster does not answer.
        self.outcome: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
        # A caller that is gone does not look at it.
        self.outcome.add_done_callback(lambda outcome: outcome.cancelled() or outcome.exception())

    def abandon(self) -> None:
        """The caller is gone."""
        self._gone.set()
        if self.outcome.done() and self.outcome.exception() is None:
            slot = self.outcome.result()
            if slot is not None:
                slot._end.set()

    async def run(self) -> None:
        guard = self._guard
        try:
            # Not broken off when the caller goes: its outcome decides what is to be undone.
            entered = await guard.noted(self._line.enter(self._key, lane=self._lane))
            if entered.ticket is None:
                raise BadReply("outcome_unknown", "the answer to enter has no ticket")
        except NowservingError as error:
            self._fail(error)
            if _may_be_in_line(error):
                await guard.leave_by_key(self._key)
            return
        self._ticket = entered.ticket
        try:
            claimed, lease = await self._seat(entered)
        except (NowservingError, _CallerGone) as error:
            if isinstance(error, NowservingError):
                self._fail(error)
            if not (isinstance(error, NoSlot) and error.code == "removed"):
                await guard.leave(self._ticket)
            return
        await self._hold(claimed, lease)

    def _fail(self, error: NowservingError) -> None:
        if not self.outcome.done():
            if _is_away(error):
                self.outcome.set_result(None)
            else:
                self.outcome.set_exception(_no_slot(error))

    async def _seat(self, entered: Status) -> tuple[Status, Lease]:
        """Waits for the turn, and claims."""
        if entered.state == "waiting":
            await self._turn()
        while True:
            if self._gone.is_set():
                raise _CallerGone
            sent = time.monotonic()
            try:
                claimed = await self._guard.noted(self._line.claim(self._ticket))
            except Refused as error:
                if error.code != "not_admitted":
                    raise
                # An earlier leader said that it is admitted, and was not to be trusted: it waits on.
                await _pause()
                await self._turn()
                continue
            if claimed.ticket is not None:
                self._ticket = claimed.ticket
            if claimed.epoch is None:
                raise BadReply("outcome_unknown", "the answer to claim has no epoch")
            if claimed.expires_in_ms is None:
                raise _released_on_claim(self._line.name)
            return claimed, Lease.new(sent, claimed.expires_in_ms / 1000)

    async def _turn(self) -> None:
        turn = asyncio.ensure_future(self._admitted())
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise _CallerGone
            turn.result()
        finally:
            gone.cancel()
            if not turn.done():
                turn.cancel()

    async def _admitted(self) -> None:
        """Waits until the token waits no longer. A poll without an answer is repeated while others are answered."""
        tracker = self._line.track(self._ticket)
        while True:
            sent = time.monotonic()
            try:
                status = await tracker.step()
            except StopAsyncIteration:
                raise NoSlot("removed", "removed from the line", reason="gone") from None
            except NowservingError as error:
                if not _is_unanswered(error):
                    raise
                if self._guard.is_away or not await self._guard.answers():
                    self._guard.note_failed(max(sent, time.monotonic() - self._guard.patience), error)
                    raise
                await _pause()
                continue
            finally:
                self._ticket = tracker.ticket
            if status.state == "gone":
                if status.reason == "wait_expired":
                    raise _too_late(self._begin)
                raise _removed(status.reason)
            if status.state != "waiting":
                return

    async def _hold(self, claimed: Status, lease: Lease) -> None:
        """Hands the slot out, renews the claim until the slot is given back, and tells the cluster."""
        guard, epoch = self._guard, claimed.epoch
        slot = Slot("seat", time.monotonic() - self._begin, claimed)
        if self._gone.is_set():
            slot._end.set()
        elif not self.outcome.done():
            self.outcome.set_result(slot)
        renewing = asyncio.ensure_future(self._renew(epoch or 0, lease))
        ending = asyncio.ensure_future(slot._end.wait())
        try:
            await asyncio.wait({renewing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not slot._end.is_set():
                _log.warning("line %s: the seat of epoch %s is lost: %s", self._line.name, epoch, renewing.result())
                slot._lose()
                await ending
            renewing.cancel()
            least = max(_GIVE_BACK, min(lease.full, _GIVE_BACK_MAX))
            await guard.give_back(least, lambda: guard.noted(self._line.complete(self._ticket, epoch)))
        finally:
            renewing.cancel()
            ending.cancel()
            slot._given_back.set()

    async def _renew(self, epoch: int, lease: Lease) -> str:
        """Renews until the cluster refuses it, or its time is up. Returns why it ended."""
        guard = self._guard
        renew_at = lease.renew_at
        while True:
            end = guard.own_end(lease)
            if renew_at is None or (end is not None and renew_at >= end):
                await _until(end)
                return "its time is up"
            await _until(renew_at)
            sent = time.monotonic()
            try:
                async with asyncio.timeout(None if end is None else max(0.0, end - sent)):
                    renewed = await guard.noted(self._line.renew(self._ticket, epoch))
            except TimeoutError:
                return "its time is up"
            except Refused as error:
                return str(error)
            except NowservingError:
                renew_at = time.monotonic() + _RETRY_DELAY * (1 + random.random())
                continue
            if renewed.expires_in_ms is None:
                renew_at = time.monotonic() + _RETRY_DELAY * (1 + random.random())
                continue
            lease = lease.renewed(sent, renewed.expires_in_ms / 1000)
            renew_at = lease.renew_at


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """The event loop alone would not keep a task alive."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _pause() -> None:
    await asyncio.sleep(_RETRY_DELAY * (1 + random.random()))


async def _until(at: float | None) -> None:
    if at is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(max(0.0, at - time.monotonic()))


def _is_unanswered(error: NowservingError) -> bool:
    """Whether the cluster may answer the same call later."""
    return error.is_transient or isinstance(error, ConnectionFailed)


def _is_away(error: NowservingError) -> bool:
    """A busy cluster is not away."""
    return _is_unanswered(error) and error.last_code != "overloaded"


def _may_be_in_line(error: NowservingError) -> bool:
    """Whether the caller of a failed ``enter`` may be in line, or come into it later."""
    if isinstance(error, Refused | Unavailable):
        return error.may_have_happened
    return not isinstance(error, BadArgument)


def _no_slot(error: NowservingError) -> NowservingError:
    """The refusal for an error that is about the request and not about the cluster."""
    if error.code in ("line_full", "sold_out"):
        return NoSlot("line_full", error.message, retry_after_ms=error.retry_after_ms)
    if error.code == "line_closed":
        return NoSlot("line_closed", error.message)
    if error.code == "token_gone":
        return _removed(error.reason)
    if error.last_code == "overloaded" and error.is_transient:
        return NoSlot("overloaded", error.message, retry_after_ms=error.retry_after_ms)
    return error


def _removed(reason: str | None) -> NoSlot:
    return NoSlot("removed", f"removed from the line ({reason or 'forgotten'})", reason=reason)


def _too_late(begin: float) -> NoSlot:
    return NoSlot("waited_too_long", f"waited too long ({time.monotonic() - begin:.1f} s)")


def _released_on_claim(line: str) -> BadArgument:
    return BadArgument("bad_request", f"line {line} has release_on_claim set: a guard needs it off")
