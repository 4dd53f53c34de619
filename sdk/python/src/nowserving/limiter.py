"""Rate limits: whether a request may pass."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._health import PROBE_EVERY, LimiterHealth
from ._subjects import name as checked_name
from ._subjects import shard_of_check
from .errors import BadArgument, ConnectionFailed, NowservingError, Refused, Unavailable
from .types import CheckReply, DescriptorReply

if TYPE_CHECKING:
    from .client import Client

Descriptor = Mapping[str, str] | Sequence[tuple[str, str]]

#: A caller that waits until it is allowed asks again after at least the first, and after each refusal twice as long, up to
#: the second.
_PAUSE_MIN = 0.005
_PAUSE_MIN_MAX = 0.25


class Limiter:
    """The rate limits of one domain. Made by :meth:`nowserving.Client.limiter`. ::

    limiter = client.limiter("shop")
    reply = await limiter.check({"remote_address": "127.0.0.1"})
    if not reply.allowed:
        ...  # 429, Retry-After: reply.retry_after_ms
    """

    def __init__(
        self, client: Client, domain: str, *, on_unavailable: Literal["allow", "deny", "fail"], patience: float
    ) -> None:
        self._client = client
        self._domain = checked_name("domain", domain)
        if on_unavailable not in ("allow", "deny", "fail"):
            raise BadArgument("bad_request", "on_unavailable: must be allow, deny or fail")
        self._on_unavailable = on_unavailable
        self._patience = patience
        self._health = LimiterHealth()
        self._finishing: set[asyncio.Task[Any]] = set()

    @property
    def domain(self) -> str:
        """The domain."""
        return self._domain

    @property
    def is_away(self) -> bool:
        """Whether the cluster is away, so that ``on_unavailable`` decides without asking it."""
        return self._health.is_away

    async def check(
        self, *descriptors: Descriptor, hits: int = 1, dry_run: bool = False, max_delay_ms: int | None = None
    ) -> CheckReply:
        """``hits`` on each of these descriptors, each ``{key: value, …}`` or, for a key twice, ``[(key, value), …]``.

        Over the limit is an answer, not an error: ``allowed``. If the cluster does not answer, ``on_unavailable``
        decides, and the answer has ``without_cluster``. A request counts on all of its limits or on none.

        The attempts of one call are one hit on exact limits. On others an attempt whose answer was lost may count as
        well, so that the limit holds.

        Raises :class:`~nowserving.BadArgument`, before anything is sent; :class:`~nowserving.Refused`;
        :class:`~nowserving.Forbidden`; with ``fail`` what the call failed with.
        """
        body = _body(descriptors, hits, dry_run, max_delay_ms)
        error = await self._ask(body, self._patience)
        return error if isinstance(error, CheckReply) else self._without_cluster(body, error)

    async def wait_until_allowed(self, *descriptors: Descriptor, within: float, hits: int = 1) -> CheckReply | None:
        """Asks until the request is allowed, and waits as long as a leaking bucket says.

        ``None``: not within so many seconds, or never, as it has more hits than the limit allows at once. It returns as
        soon as it knows that.

        Raises as :meth:`check`.
        """
        until = time.monotonic() + within
        was_refused = False
        pause_min = _PAUSE_MIN
        while True:
            left = until - time.monotonic()
            is_short = left < self._patience
            # Some of the time that is left is for the answer.
            max_delay_ms = max(0, int((left - min(self._patience, left / 4)) * 1000))
            body = _body(descriptors, hits, False, max_delay_ms)
            asked = await self._ask(body, min(self._patience, left))
            if isinstance(asked, CheckReply):
                reply = asked
            elif was_refused and is_short and asked is not None:
                # It was over its limit, and its last attempt had too little time: that says nothing of the cluster.
                return None
            else:
                reply = self._without_cluster(body, asked)
            left = until - time.monotonic()
            delay = (reply.delay_ms or 0) / 1000
            if reply.allowed:
                if delay > left:
                    return None
                await asyncio.sleep(delay)
                return reply
            if reply.retry_after_ms is None or delay * 1000 > max_delay_ms:
                return None
            retry_after = max(reply.retry_after_ms, 1) / 1000
            if retry_after >= left:
                return None
            was_refused |= not reply.without_cluster
            pause = max(retry_after, min(pause_min, left / 2))
            await asyncio.sleep(pause + min(min(pause / 8, 0.05) * random.random(), max(0.0, left - pause) / 2))
            pause_min = min(pause_min * 2, _PAUSE_MIN_MAX)
            if until <= time.monotonic():
                return None

    async def _ask(self, body: dict[str, Any], within: float) -> CheckReply | NowservingError | None:
        """The answer, or the error of a call that was not answered; ``None`` if the cluster was not asked."""
        # A caller that wants the error gets that of its own call.
        if self._on_unavailable != "fail" and not self._health.may_ask(self._patience):
            return None
        call = asyncio.create_task(self._call(body, within))
        # A call whose caller goes away is ended all the same: its answer says whether the cluster is there.
        self._finishing.add(call)
        call.add_done_callback(self._finished)
        return await asyncio.shield(call)

    def _finished(self, call: asyncio.Task[Any]) -> None:
        self._finishing.discard(call)
        if not call.cancelled():
            call.exception()

    async def _call(self, body: dict[str, Any], within: float) -> CheckReply | NowservingError:
        sent = time.monotonic()
        prefix, domain = self._client.prefix, self._domain

        def on_shard(shards: int) -> str:
            # The leader of the first descriptor's shard answers from its memory, if it has the others' counters, too.
            shard = shard_of_check(domain, body["descriptors"][0], shards)
            return f"{prefix}.leader.{shard}.limit.{domain}.check"

        try:
            reply = await self._client.connection.call(
                plain=f"{prefix}.limit.{domain}.check",
                on_shard=on_shard,
                body=body,
                is_write=not body.get("dry_run", False),
                within=within,
            )
        except NowservingError as error:
            if isinstance(error, Refused):
                self._health.answered()
            if not (error.is_transient or isinstance(error, ConnectionFailed)):
                raise
            # A call that was given less time proves nothing, and a busy cluster is not away.
            if within == self._patience and error.last_code != "overloaded":
                self._health.failed(sent)
            return error
        self._health.answered()
        return CheckReply.read(reply)

    def _without_cluster(self, body: dict[str, Any], error: NowservingError | None) -> CheckReply:
        if self._on_unavailable == "fail":
            raise error or Unavailable("unavailable", "the cluster does not answer")
        allowed = self._on_unavailable == "allow"
        return CheckReply(
            allowed=allowed,
            descriptors=tuple(DescriptorReply(allowed=allowed) for _ in body["descriptors"]),
            retry_after_ms=None if allowed else int(PROBE_EVERY * 1000),
            without_cluster=True,
        )


def _body(descriptors: Sequence[Descriptor], hits: int, dry_run: bool, max_delay_ms: int | None) -> dict[str, Any]:
    """Nodes would refuse what is malformed. It is checked here too, also while the cluster is away."""
    lists = [_entries(nth, descriptor) for nth, descriptor in enumerate(descriptors)]
    if not 1 <= len(lists) <= 16:
        raise BadArgument("bad_request", "descriptors: 1 to 16 descriptors")
    if not 0 <= hits <= 0xFFFF_FFFF:
        raise BadArgument("bad_request", "hits: 0 to 4294967295")
    body: dict[str, Any] = {"descriptors": lists}
    if hits != 1:
        body["hits"] = hits
    if dry_run:
        body["dry_run"] = True
    if max_delay_ms is not None:
        body["max_delay_ms"] = max_delay_ms
    return body


def _entries(nth: int, descriptor: Descriptor) -> list[dict[str, str]]:
    pairs = list(descriptor.items() if isinstance(descriptor, Mapping) else descriptor)
    field = f"descriptors[{nth}]"
    if not 1 <= len(pairs) <= 16:
        raise BadArgument("bad_request", f"{field}: 1 to 16 entries")
    for place, (key, value) in enumerate(pairs):
        if not 1 <= len(key.encode()) <= 256:
            raise BadArgument("bad_request", f"{field}[{place}].key: 1 to 256 bytes")
        if len(value.encode()) > 1024:
            raise BadArgument("bad_request", f"{field}[{place}].value: at most 1024 bytes")
    return [{"key": key, "value": value} for key, value in pairs]
