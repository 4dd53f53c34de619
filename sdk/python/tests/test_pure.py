"""What needs no server: places against a slow computation of them, retries, leases, errors, guards over a made-up line."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import pytest

from nowserving import (
    BadArgument,
    BadReply,
    Board,
    CheckReply,
    Client,
    ConnectionFailed,
    Forbidden,
    Guard,
    Info,
    Line,
    NoSlot,
    NowservingError,
    OutcomeUnknown,
    PlacesFromEvents,
    Refused,
    SeatLost,
    Status,
    Unavailable,
)
from nowserving import guard as guard_module
from nowserving._attempts import Answered, Attempts, Failure, NoAnswer, NoResponders
from nowserving._connection import Connection, _forbids_sending, read_shards
from nowserving._feed import Feed, Watcher
from nowserving._lease import Lease
from nowserving._place import Place, union
from nowserving._view import View

# ---- places


@dataclass
class Naive:
    """A lane that knows each of its tokens."""

    random: random.Random
    next_token: int = 1
    admitted_through: int = 0
    version: int = 1
    waiting: set[int] = field(default_factory=set)
    holes: set[int] = field(default_factory=set)
    all_holes: set[int] = field(default_factory=set)
    published: int = 1

    def step(self) -> None:
        self.version += self.random.randint(1, 3)
        what = self.random.random()
        if what < 0.5 or not self.waiting:
            self.waiting.add(self.next_token)
            self.next_token += 1
        elif what < 0.8:
            gone = self.random.choice(sorted(self.waiting))
            self.waiting.discard(gone)
            self.holes.add(gone)
            self.all_holes.add(gone)
        else:
            first = min(self.waiting)
            self.waiting.discard(first)
        self.admitted_through = min(self.waiting, default=self.next_token) - 1

    def ranges(self, numbers: set[int]) -> list[list[int]]:
        return [list(each) for each in union([(n, n) for n in numbers], 0, self.next_token)]

    def board(self, *, whole: bool = False) -> Board:
        between = {n for n in self.all_holes if n > self.admitted_through}
        lane = {
            "lane": "normal",
            "next_token": self.next_token,
            "admitted_through": self.admitted_through,
            "waiting": len(self.waiting),
            "holes": self.ranges(between if whole else self.holes),
        }
        head = {"line": "l", "incarnation": 1, "version": self.version, "prev_version": self.published, "whole": whole}
        self.published, self.holes = self.version, set()
        return Board.read({**head, "lanes": [lane]})

    def position(self, token: int) -> int | None:
        return 1 + sum(1 for each in self.waiting if each < token) if token in self.waiting else None


@pytest.mark.parametrize("seed", range(60))
def test_places_are_those_of_a_lane_that_knows_each_token(seed: int) -> None:
    rng = random.Random(seed)
    lane = Naive(rng)
    for _ in range(20):
        lane.step()
    lane.board()
    token = max(lane.waiting | {1})
    place, places = Place(token), PlacesFromEvents()
    before = {(n, n) for n in lane.all_holes if lane.admitted_through < n < token}
    place.sync(lane.version, lane.admitted_through, before)
    places.board(lane.board(whole=True))
    for nth in range(120):
        for _ in range(rng.randint(1, 4)):
            lane.step()
        board = lane.board(whole=rng.random() < 0.1)
        if rng.random() < 0.1 and not board.whole:
            # It is lost.
            lost = True
        else:
            lost = False
            of_lane = board.lanes[0]
            if board.whole:
                place.whole_board(board.version, of_lane.admitted_through, of_lane.holes or ())
            else:
                place.board(board.version, board.prev_version, of_lane.admitted_through, of_lane.holes or ())
            places.board(board)
        expected = lane.position(token)
        if not lost and place.version == lane.version:
            assert place.position == expected, nth
        if not lost:
            for each in range(1, lane.next_token):
                standing = places.standing("normal", each)
                if standing.standing == "position":
                    assert standing.position == lane.position(each), (nth, each)
                elif standing.standing == "passed":
                    assert lane.position(each) is None, (nth, each)
        if board.whole and not lost:
            assert all(places.standing("normal", each).standing != "unknown" for each in range(1, lane.next_token))


def waiting(version: int, position: int, **more: Any) -> Status:
    known: dict[str, Any] = {"line": "l", "incarnation": 1, "lane": "normal", "token": 9, "state": "waiting"}
    return Status.read({**known, "version": version, "position": position, "admitted_through": 0, **more})


def test_a_status_that_changes_nothing_is_not_shown() -> None:
    view = View(0.0)
    assert view.status(waiting(5, 9, holes=[]), 0.0) is not None
    assert view.status(waiting(6, 9), 1.0) is None
    assert view.status(waiting(7, 8), 2.0) is not None
    # An older one, of a leader that does not know yet that it was replaced.
    assert view.status(waiting(6, 9), 3.0) is None
    assert view.last is not None
    assert view.last.position == 8


def test_a_watcher_that_falls_behind_asks() -> None:
    view = View(0.0)
    view.status(waiting(5, 9, holes=[], poll_after_ms=60_000), 0.0)
    assert not view.wants_holes
    view.resync(1.0)
    assert view.wants_holes
    assert view.poll_at <= 1.25


# ---- calls


def answered(code: str, **more: Any) -> Answered:
    return Answered({"code": code, "message": "x", **more})


def stops(attempts: Attempts, failure: Failure, left: float = 10.0) -> NowservingError:
    with pytest.raises(NowservingError) as raised:
        attempts.after(failure, left)
    return raised.value


def test_refusals_are_final_and_others_are_repeated() -> None:
    for code in ("unavailable", "not_leader", "overloaded", "outcome_unknown"):
        Attempts(is_write=True, shard_known=True).after(answered(code), 10.0)
    for code in ("line_full", "bad_request", "token_gone", "something_new"):
        error = stops(Attempts(is_write=True, shard_known=True), answered(code))
        assert isinstance(error, Refused)
        assert (error.code, error.may_have_happened) == (code, False)


def test_without_a_leader_any_node_is_asked_at_once() -> None:
    attempts = Attempts(is_write=True, shard_known=True)
    assert attempts.after(NoResponders(), 10.0) == 0
    routes = [attempts.route]
    assert 0.02 <= attempts.after(NoResponders(), 10.0) <= 0.04
    routes.append(attempts.route)
    # A busy leader is not gone around.
    attempts.after(answered("overloaded"), 10.0)
    routes.append(attempts.route)
    assert routes == ["plain", "shard", "shard"]


def test_pauses_grow_to_a_bound_and_honour_the_answer() -> None:
    attempts = Attempts(is_write=True, shard_known=False)
    pauses = [attempts.after(NoAnswer(), 100.0) for _ in range(20)]
    assert pauses[0] < 0.041
    assert all(0.25 <= pause <= 0.5 for pause in pauses[5:])
    pause = Attempts(is_write=True, shard_known=True).after(answered("overloaded", retry_after_ms=1000), 10.0)
    assert 1.0 <= pause <= 1.25


def test_an_unknown_outcome_is_not_forgotten() -> None:
    attempts = Attempts(is_write=True, shard_known=True)
    attempts.after(NoAnswer(), 10.0)
    error = stops(attempts, answered("unavailable", retry_after_ms=5), left=0.0)
    assert isinstance(error, OutcomeUnknown)
    assert error.retry_after_ms == 5
    error = stops(attempts, answered("version_conflict"))
    assert error.may_have_happened
    assert "may have had its effect" in str(error)


def test_a_read_has_no_unknown_outcome() -> None:
    error = stops(Attempts(is_write=False, shard_known=True), NoAnswer(), left=0.0)
    assert isinstance(error, Unavailable)
    assert not error.may_have_happened


def test_shards_of_our_cluster_only() -> None:
    ours = b'{"metadata": {"shards": "16", "prefix": "nowserving"}}'
    assert read_shards(ours, "nowserving") == 16
    assert read_shards(ours, "other") is None
    assert read_shards(b'{"metadata": {"shards": "16"}}', "any") == 16
    for bad in (b"", b"{}", b"[]", b'{"metadata": {"shards": "0"}}', b'{"metadata": {"shards": "x"}}'):
        assert read_shards(bad, "nowserving") is None


def test_a_request_is_known_under_the_subject_that_it_is_mapped_to() -> None:
    plain = "nowserving.line.shop-1.enter"
    assert _forbids_sending(plain, plain, "nowserving")
    assert _forbids_sending("nowserving.shard.7.shop-1.enter", plain, "nowserving")
    assert not _forbids_sending("nowserving.shard.7.shop-11.enter", plain, "nowserving")
    assert not _forbids_sending("other.shard.7.shop-1.enter", plain, "nowserving")


def test_a_refused_subscription_ends_what_a_watcher_waits_for() -> None:
    class FakeNats:
        stats: ClassVar[dict[str, int]] = {"reconnects": 0}

    async def main() -> None:
        connection = Connection(cast(Any, FakeNats()), "nowserving")
        watchers = [Watcher(Feed(connection, name)) for name in ("mine", "other")]
        waits = [asyncio.ensure_future(each.unless_ended(asyncio.sleep(5))) for each in watchers]
        await asyncio.sleep(0)
        # nats-py puts the server's words into lower case.
        words = 'nats: permissions violation for subscription to "nowserving.event.mine.board"'
        connection.note_error(Exception(words))
        with pytest.raises(Forbidden) as refused:
            await asyncio.wait_for(asyncio.shield(waits[0]), 1)
        assert "nowserving.event.mine.board" in refused.value.message
        with pytest.raises(Forbidden):
            await watchers[0].next(1)
        assert not waits[1].done()
        waits[1].cancel()

    asyncio.run(main())


def test_replies_that_cannot_be_read_are_errors() -> None:
    replies: list[Any] = [None, [], {}, {"lanes": 1}, {"lanes": [1]}, {"line": "l", "holes": [1]}]
    for reply in replies:
        for kind in (Status, Board, Info):
            with pytest.raises(BadReply):
                kind.read(reply)
    with pytest.raises(BadReply):
        CheckReply.read([])
    # A field of a later release.
    assert waiting(5, 9, new_field={"x": 1}).position == 9


def test_arguments_are_checked_before_anything_is_sent() -> None:
    client = cast(Client, None)
    for name in ("", "a b", "a.b", "*", ">", "票", "x" * 65):
        with pytest.raises(BadArgument):
            Line(client, name)
    with pytest.raises(BadArgument):
        Client.connect(prefix="a b")
    with pytest.raises(BadArgument):
        asyncio.run(Line(client, "l").enter(""))
    with pytest.raises(BadArgument):
        asyncio.run(Line(client, "l").enter("票" * 43))


# ---- leases


def test_a_claim_is_renewed_at_a_third_and_seldom_near_the_end() -> None:
    full, most = 30.0, 300.0
    lease, times = Lease.new(0.0, full), []
    while lease.renew_at is not None:
        times.append(lease.renew_at)
        lease = lease.renewed(lease.renew_at, min(full, most - lease.renew_at))
    assert times[:2] == [10.0, 20.0]
    assert sum(1 for at in times if at > most - full) <= 7
    assert lease.expires_at <= most


def test_a_shorter_timeout_is_no_end() -> None:
    lease = Lease.new(0.0, 30.0)
    assert lease.renewed(10.0, 2.0).renew_at == 10.0 + 2.0 / 3


# ---- guards


class FakeTracker:
    def __init__(self, line: FakeLine, ticket: str) -> None:
        self.line, self.ticket = line, ticket

    async def step(self) -> Status:
        while self.ticket in self.line.queue:
            await asyncio.sleep(0.01)
            self.line.check()
        if self.ticket in self.line.held:
            return self.line.status(self.ticket, "admitted")
        return self.line.status(self.ticket, "gone", reason=self.line.gone_as)


class FakeLine:
    """A line of one seat in memory; `down` answers nothing."""

    name = "fake"

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.held: dict[str, int] = {}
        self.down = False
        self.gone_as = "kicked"
        self.lasts_ms = 10_000
        self.epoch = 0
        self.renewals = 0
        self.entered = 0

    def with_deadline(self, seconds: float) -> FakeLine:
        return self

    def check(self) -> None:
        if self.down:
            raise Unavailable("unavailable", "down")
        if self.queue and not self.held:
            self.held[self.queue.pop(0)] = 0

    def status(self, ticket: str, state: str, **more: Any) -> Status:
        head = {"line": "fake", "incarnation": 1, "lane": "normal", "token": 1, "version": 1, "ticket": ticket}
        return Status.read({**head, "state": state, **more})

    async def info(self) -> Info:
        self.check()
        head = {"line": "fake", "incarnation": 1, "version": 1, "lanes": [], "settings": {}}
        return Info.read(head)

    async def enter(self, key: str, *, lane: str | None = None) -> Status:
        self.check()
        self.entered += 1
        self.queue.append(key)
        self.check()
        return self.status(key, "admitted" if key in self.held else "waiting", position=len(self.queue))

    def track(self, ticket: str) -> FakeTracker:
        return FakeTracker(self, ticket)

    async def claim(self, ticket: str) -> Status:
        self.check()
        self.epoch += 1
        self.held[ticket] = self.epoch
        return self.status(ticket, "in_checkout", epoch=self.epoch, expires_in_ms=self.lasts_ms)

    async def renew(self, ticket: str, epoch: int) -> Status:
        self.check()
        self.renewals += 1
        if self.held.get(ticket) != epoch:
            raise Refused("token_gone", "gone", reason="kicked")
        return self.status(ticket, "in_checkout", epoch=epoch, expires_in_ms=self.lasts_ms)

    async def complete(self, ticket: str, epoch: int | None = None) -> Status:
        self.check()
        self.held.pop(ticket, None)
        self.check()
        return self.status(ticket, "gone", reason="completed")

    async def leave(self, ticket: str) -> Status:
        self.check()
        self.held.pop(ticket, None)
        self.queue = [each for each in self.queue if each != ticket]
        return self.status(ticket, "gone", reason="left")

    async def find(self, key: str) -> Status:
        self.check()
        raise Refused("token_not_found", "no such token")


def over(line: FakeLine, **options: Any) -> Guard:
    return Guard(cast(Line, line), **options)


def test_one_at_a_time_in_order_and_given_back_after_errors() -> None:
    async def main() -> None:
        line = FakeLine()
        guard = over(line)
        running, order = 0, []

        async def work(nth: int) -> None:
            nonlocal running
            async with guard.acquire() as slot:
                running += 1
                assert running == 1
                assert slot.epoch == nth + 1
                order.append(nth)
                await asyncio.sleep(0.01)
                running -= 1
                if nth == 1:
                    raise ValueError(nth)

        tasks = [asyncio.create_task(work(nth)) for nth in range(4)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), ValueError, type(None), type(None)]
        assert order == [0, 1, 2, 3]
        await asyncio.wait_for(guard.drained(), 1)
        assert not line.held
        assert not line.queue
        with pytest.raises(NoSlot) as refused:
            await guard.acquire()
        assert refused.value.code == "busy"

    asyncio.run(main())


def test_a_lost_seat_cancels_the_body() -> None:
    async def main() -> None:
        line = FakeLine()
        line.lasts_ms = 150
        guard = over(line)
        with pytest.raises(SeatLost):
            async with guard.acquire() as slot:
                await asyncio.sleep(0.3)
                assert line.renewals >= 3
                assert not slot.is_lost
                line.held.clear()
                await asyncio.sleep(5)
        # The task itself goes on.
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.wait_for(guard.drained(), 1)

    asyncio.run(main())


def test_a_body_that_is_cancelled_by_others_gives_its_slot_back() -> None:
    async def main() -> None:
        line = FakeLine()
        guard = over(line)

        async def work() -> None:
            async with guard.acquire():
                await asyncio.sleep(5)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        assert line.held
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(guard.drained(), 1)
        assert not line.held

    asyncio.run(main())


def test_callers_that_are_removed_or_wait_too_long() -> None:
    async def main() -> None:
        line = FakeLine()
        guard = over(line)
        first = await guard.acquire()
        with pytest.raises(NoSlot) as late:
            await guard.acquire(max_wait=0.05)
        assert late.value.code == "waited_too_long"
        await asyncio.sleep(0.05)
        assert not line.queue
        for reason, code in (("kicked", "removed"), ("wait_expired", "waited_too_long")):
            line.gone_as = reason
            waiting = asyncio.ensure_future(guard.acquire())
            await asyncio.sleep(0.03)
            line.queue.clear()
            with pytest.raises(NoSlot) as gone:
                await waiting
            assert gone.value.code == code
        await first.release()
        assert not line.held

    asyncio.run(main())


@pytest.mark.parametrize("choice", ["allow", "deny"])
def test_the_cluster_is_away_and_comes_back(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "next_probe", lambda now: now + 0.05)

    async def main() -> None:
        line = FakeLine()
        guard = over(line, on_unavailable=choice)
        line.down = True
        for _ in range(2):
            # The first one is a doubt, and the read that follows it confirms it.
            if choice == "deny":
                with pytest.raises(NoSlot) as away:
                    await guard.acquire()
                assert away.value.code == "unavailable"
            else:
                slot = await guard.acquire()
                assert (slot.kind, slot.epoch) == ("allowed", None)
                await slot.release()
            await asyncio.sleep(0.02)
        assert guard.is_away
        line.down = False
        await asyncio.sleep(0.2)
        assert not guard.is_away
        slot = await guard.acquire()
        assert slot.kind == "seat"
        await slot.release()
        await asyncio.wait_for(guard.drained(), 1)
        assert not line.held
        assert not line.queue

    asyncio.run(main())


def test_a_connection_that_is_closed_for_good_ends_what_a_guard_has_under_way() -> None:
    async def main() -> None:
        line = FakeLine()
        guard = over(line, on_unavailable="deny")
        slot = await guard.acquire()

        def closed() -> None:
            raise ConnectionFailed("unavailable", "closed")

        line.check = closed  # type: ignore[method-assign]
        await asyncio.wait_for(slot.release(), 5)
        with pytest.raises(NoSlot) as refused:
            await guard.acquire()
        assert refused.value.code == "unavailable"
        await asyncio.wait_for(guard.drained(), 5)

    asyncio.run(main())


def test_with_deny_a_seat_ends_with_its_claim() -> None:
    async def main() -> None:
        for choice, lost in (("deny", True), ("allow", False)):
            line = FakeLine()
            line.lasts_ms = 200
            guard = over(line, on_unavailable=choice)
            slot = await guard.acquire()
            line.down = True
            await asyncio.sleep(0.4)
            assert slot.is_lost == lost, choice
            line.down = False

    asyncio.run(main())
