"""The operations of users on a line, called by their backend."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._feed import Watcher
from ._subjects import name as checked_name
from ._subjects import shard_of_line
from ._track import Tracker
from .errors import BadArgument, NowservingError
from .types import Info, Seen, Status

if TYPE_CHECKING:
    from .client import Client

Consistency = Literal["leader", "linearizable", "local"]


class Line:
    """One line of a cluster. Made by :meth:`nowserving.Client.line`; sends no request by itself.

    Any call can raise :class:`~nowserving.Unavailable`, and one that changes something
    :class:`~nowserving.OutcomeUnknown`; every call may then be repeated. Each call documents its own refusals, as codes of
    :class:`~nowserving.Refused`.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = checked_name("line", name)

    @property
    def name(self) -> str:
        """The line's name."""
        return self._name

    @property
    def client(self) -> Client:
        """The client that this line belongs to."""
        return self._client

    def with_deadline(self, seconds: float) -> Line:
        """The same line with another deadline for its calls."""
        return Line(self._client.with_deadline(seconds), self._name)

    async def enter(self, key: str | None = None, *, lane: str | None = None) -> Status:
        """Takes a number under ``key``, 1 to 128 bytes that identify the user in your own terms.

        If the key has a live token already, the reply is that token's status. The reply has the ``ticket``. Without a
        key each call takes another number.

        Refusals: ``line_not_found``, ``line_closed``, ``line_full``, ``sold_out``; ``bad_request`` for a lane that the
        line does not have.
        """
        # A key makes the attempts of a call one visit for as long as the token lives.
        body: dict[str, Any] = {"key": _key(f"sdk-{secrets.token_hex(16)}" if key is None else key)}
        if lane is not None:
            body["lane"] = lane
        return Status.read(await self._call("enter", body, is_write=True))

    async def find(self, key: str) -> Status:
        """The live token of a key, with its ticket, without entering.

        Refusals: ``token_not_found``, ``line_not_found``.
        """
        return Status.read(await self._call("find", {"key": _key(key)}))

    async def status(
        self,
        ticket: str,
        *,
        holes: bool = False,
        signed_pass: bool = False,
        consistency: Consistency | None = None,
    ) -> Status:
        """The status of a token.

        It also marks the token as seen: ask every ``poll_after_ms``, or the token is recycled as ``idle``.
        :meth:`track` does that. If an operator moved the token into another lane, this and all other calls act on the
        token as it is now and answer its new ``ticket``; the old one stays valid.

        ``signed_pass``: also answer a signed pass, while the token holds a seat.

        Refusals: ``ticket_invalid``, ``line_not_found``.
        """
        body: dict[str, Any] = {"ticket": ticket}
        if holes:
            body["holes"] = True
        if signed_pass:
            body["pass"] = True
        if consistency is not None:
            body["consistency"] = consistency
        return Status.read(await self._call("status", body))

    async def status_by_key(self, key: str) -> Status:
        """:meth:`status` for a backend that keeps no tickets. The reply has none; :meth:`find` answers it.

        Refusals: ``token_not_found`` if the key has no live token, ``line_not_found``.
        """
        return Status.read(await self._call("status", {"key": _key(key)}))

    async def seen(self, tickets: Sequence[str]) -> Seen:
        """Marks up to 256 tokens as seen by one message, as :meth:`status` of each does.

        For a gateway that tells many users their places from events. Call it again after ``poll_after_ms``.

        Refusals: ``bad_request`` without tickets, or with more; ``line_not_found``.
        """
        return Seen.read(await self._call("seen", {"tickets": list(tickets)}))

    async def claim(self, ticket: str, *, signed_pass: bool = False) -> Status:
        """Goes into checkout. The reply has the ``epoch``, a number that only grows, and ``expires_in_ms``.

        A repeated call gets the same epoch and the current expiry. ``signed_pass``: also answer a signed pass.

        Refusals: ``not_admitted`` while it waits, ``token_gone``, ``ticket_invalid``.
        """
        body: dict[str, Any] = {"ticket": ticket}
        if signed_pass:
            body["pass"] = True
        return Status.read(await self._call("claim", body, is_write=True))

    async def renew(self, ticket: str, epoch: int) -> Status:
        """Keeps a claimed seat for another ``checkout_timeout_ms``, until ``checkout_max_ms`` after the claim.

        Refusals: ``epoch_stale``, ``not_admitted``, ``not_claimed``, ``token_gone``, ``ticket_invalid``.
        """
        return Status.read(await self._call("renew", {"ticket": ticket, "epoch": epoch}, is_write=True))

    async def complete(self, ticket: str, epoch: int | None = None, *, units: int | None = None) -> Status:
        """Ends the checkout and gives the seat back; with an ``epoch``, only if it is the current one.

        ``units``: how many of the line's quota were used, at most as many as the seat reserves; by default that many.

        Refusals: ``bad_request`` for more ``units``; ``epoch_stale``, ``not_admitted``, ``not_claimed``, ``token_gone``
        (for another reason than ``completed``), ``ticket_invalid``.
        """
        body: dict[str, Any] = {"ticket": ticket}
        if epoch is not None:
            body["epoch"] = epoch
        if units is not None:
            body["units"] = units
        return Status.read(await self._call("complete", body, is_write=True))

    async def leave(self, ticket: str) -> Status:
        """Leaves the line, waiting or not.

        Refusals: ``token_gone`` (for another reason than ``left``), ``ticket_invalid``.
        """
        return Status.read(await self._call("leave", {"ticket": ticket}, is_write=True))

    async def jump(self, ticket: str, to: str) -> Status:
        """Moves a waiting token into a lane that allows it, on behalf of its holder. The reply has its new ``ticket``.

        Refusals: ``forbidden`` if the lane's ``jump`` is not set, or the token has jumped ``jumps_max`` times;
        ``not_waiting``, ``token_gone``, ``ticket_invalid``; ``line_full`` if the lane is full.
        """
        return Status.read(await self._call("jump", {"ticket": ticket, "to": to}, is_write=True))

    async def info(self, *, consistency: Consistency | None = None) -> Info:
        """The board, and the settings that users may see.

        Refusals: ``line_not_found``.
        """
        body = {} if consistency is None else {"consistency": consistency}
        return Info.read(await self._call("info", body))

    def track(self, ticket: str, *, on_error: Callable[[NowservingError], None] | None = None) -> Tracker:
        """A token's exact place, as a status each time it changes. ::

            async for place in line.track(ticket):
                print(place.state, place.position)

        The first status is the current one. While the token waits, its place is computed from boards at once, and
        confirmed by a ``status`` every ``poll_after_ms``, which also keeps the token in line. In a lane a position never
        grows. The iterator follows a token that is moved into another lane: ``lane``, ``token`` and ``ticket`` change. It
        ends once the token is gone.

        Errors after which the place goes on (a leader that died, a connection that is made again) are told to
        ``on_error`` alone; others are raised, and end it.
        """
        return Tracker(self, ticket, on_error)

    async def watcher(self) -> Watcher:
        """The shared subscription behind :meth:`track`. Not for callers."""
        return await self._client.feeds.watch(self._name, self._client.deadline)

    async def _call(self, op: str, body: dict[str, Any], *, is_write: bool = False) -> Any:
        prefix = self._client.prefix
        return await self._client.connection.call(
            plain=f"{prefix}.line.{self._name}.{op}",
            on_shard=lambda shards: f"{prefix}.shard.{shard_of_line(self._name, shards)}.{self._name}.{op}",
            body=body,
            is_write=is_write,
            within=self._client.deadline,
        )


def _key(key: str) -> str:
    try:
        length = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadArgument("bad_request", f"key: {error}") from error
    if not 1 <= length <= 128:
        raise BadArgument("bad_request", "key: must have 1 to 128 bytes")
    return key
