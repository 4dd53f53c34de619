"""Requests over one NATS connection, and the rights that it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ._attempts import (
    ATTEMPT_MAX,
    REPEAT_MAX,
    Answered,
    Attempts,
    Disconnected,
    Failure,
    Fatal,
    NoAnswer,
    NoResponders,
)
from .errors import BadArgument, BadReply, ConnectionFailed, Forbidden, NowservingError

#: How long a call waits at most for the number of shards before it.
_DISCOVERY_MAX = 0.25
#: The least time between two questions for the number of shards.
_DISCOVERY_INTERVAL = 5.0

# nats-py puts the server's words into lower case.
_VIOLATION = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]*)"', re.IGNORECASE)


def bad_reply(error: object) -> BadReply:
    """A reply that cannot be read."""
    return BadReply("outcome_unknown", f"the answer cannot be read: {error}")


def login_refused(server: str) -> Forbidden:
    """The NATS server does not take the user."""
    return Forbidden("forbidden", f"{server} refused the login: unknown user, or wrong password, token, nkey or credentials")


class Connection:
    """One NATS connection: requests with replies, each matched by a subject of its own below one inbox."""

    def __init__(self, nats: Nats, prefix: str) -> None:
        self.nats = nats
        self.prefix = prefix
        #: The number of shards; ``None`` while it is not known.
        self._shards: int | None = None
        #: A shard's subject had no subscribers: there is no leader now, or the number is wrong.
        self._shards_suspect = False
        self._shards_asked_at: float | None = None
        self._inbox = ""
        self._inbox_subscription: Subscription | None = None
        self._inbox_made = asyncio.Lock()
        self._waiting: dict[str, Callable[[Msg], None]] = {}
        #: By subject the requests that are under way.
        self._sent: dict[str, set[asyncio.Future[Msg]]] = {}
        #: By subject the subscriptions that want to know that they are refused.
        self._subscribed: dict[str, set[Callable[[Forbidden], None]]] = {}
        #: No call can succeed on this connection as it is.
        self._lasting: tuple[int, NowservingError] | None = None

    # ---- rights

    def note_error(self, error: Exception) -> None:
        """Takes an error that NATS reports to the connection. Others than missing rights are ignored."""
        found = _VIOLATION.search(str(error))
        if not found:
            return
        action, subject = found[1].lower(), found[2].lower()
        if action == "publish":
            for sent, futures in self._sent.items():
                if _forbids_sending(subject, sent.lower(), self.prefix.lower()):
                    named = sent if sent.lower() == subject else subject
                    refusal = Forbidden("forbidden", f"this NATS user may not publish to {named}")
                    for future in list(futures):
                        if not future.done():
                            future.set_exception(Fatal(refusal))
            return
        if self._inbox and subject == f"{self._inbox}.*".lower():
            hint = "(inbox_prefix: the inbox that the role may use)"
            refusal = Forbidden("forbidden", f"this NATS user may not subscribe to {self._inbox}.* {hint}")
            self._lasting = (self._connects, refusal)
            for futures in self._sent.values():
                for future in list(futures):
                    if not future.done():
                        future.set_exception(Fatal(refusal))
        for name, refused in list(self._subscribed.items()):
            if name.lower() == subject:
                for tell in list(refused):
                    tell(Forbidden("forbidden", f"this NATS user may not subscribe to {name}"))

    def on_refused(self, subject: str, tell: Callable[[Forbidden], None]) -> Callable[[], None]:
        """Calls ``tell`` if the server refuses a subscription to ``subject``. Returns what ends that."""
        tells = self._subscribed.setdefault(subject, set())
        tells.add(tell)

        def end() -> None:
            tells.discard(tell)
            if not tells and self._subscribed.get(subject) is tells:
                del self._subscribed[subject]

        return end

    @property
    def _connects(self) -> int:
        return int(self.nats.stats["reconnects"])

    # ---- calls

    async def call(
        self,
        *,
        plain: str,
        on_shard: Callable[[int], str] | None,
        body: Mapping[str, Any],
        is_write: bool,
        within: float,
    ) -> Any:
        """Sends attempts until a reply, a final refusal or the deadline. Returns the reply's JSON."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within
        shards = await self.shards(within / 4) if on_shard else None
        shard_subject = on_shard(shards) if on_shard and shards else None
        try:
            payload = json.dumps(body, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise BadArgument("bad_request", str(error)) from error
        attempts = Attempts(is_write=is_write, shard_known=shard_subject is not None)
        request_id = secrets.token_hex(16) if is_write else None
        while True:
            on_leader = attempts.route == "shard" and shard_subject is not None
            subject = shard_subject if on_leader and shard_subject else plain
            sent_at = clock()
            wait = min(max(deadline - sent_at, 0.0), ATTEMPT_MAX)
            try:
                return await self._attempt(subject, payload, request_id, wait)
            except Failure as failure:
                if on_leader and isinstance(failure, NoResponders):
                    self._shards_suspect = True
                was_certain = not attempts.uncertain
                pause = attempts.after(failure, deadline - clock())
                if was_certain and attempts.uncertain:
                    deadline = min(deadline, sent_at + REPEAT_MAX)
            await asyncio.sleep(pause)

    async def _attempt(self, subject: str, payload: bytes, request_id: str | None, wait: float) -> Any:
        # A little less than the wait, so that the cluster's own word on a lost time still arrives.
        headers = {"Nowserving-Timeout-Ms": str(max(1, int(wait * 1000 * 10 / 11)))}
        if request_id is not None:
            # So the cluster can refuse a write that comes late, and recognise a copy of one that it has served.
            headers["Nowserving-Sent-Ms"] = str(int(time.time() * 1000))
            headers["Nowserving-Request-Id"] = request_id
        message = await self._request(subject, payload, headers, wait)
        is_error = message.headers is not None and "Nats-Service-Error" in message.headers
        try:
            reply = json.loads(message.data)
        except ValueError as error:
            raise Fatal(bad_reply(error)) from error
        if not is_error:
            return reply
        if not isinstance(reply, dict) or not isinstance(reply.get("error"), dict):
            raise Fatal(bad_reply("an error without its code"))
        raise Answered(reply["error"])

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str], wait: float) -> Msg:
        self._check_connected()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()

        def answered(message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        def late() -> None:
            if not answer.done():
                answer.set_exception(NoAnswer())

        timer = loop.call_later(wait, late)
        sent = self._sent.setdefault(subject, set())
        sent.add(answer)
        try:
            async with self._reply_to(answered, wait) as reply_to:
                if self._lasting and self._lasting[0] == self._connects:
                    raise Fatal(self._lasting[1])
                await self._publish(subject, payload, reply_to, headers)
                message = await answer
        finally:
            timer.cancel()
            sent.discard(answer)
            if not sent and self._sent.get(subject) is sent:
                del self._sent[subject]
            if answer.done() and not answer.cancelled():
                answer.exception()
        if _is_no_responders(message):
            raise NoResponders
        return message

    async def _publish(self, subject: str, payload: bytes, reply_to: str, headers: dict[str, str] | None) -> None:
        try:
            await self.nats.publish(subject, payload, reply=reply_to, headers=headers)
        except nats.errors.MaxPayloadError as error:
            what = f"a request of {len(payload)} bytes is more than the NATS server takes in one message"
            raise Fatal(BadArgument("bad_request", f"{what} (max_payload: {self.nats.max_payload})")) from error
        except nats.errors.ConnectionClosedError as error:
            raise Fatal(self._closed()) from error
        except nats.errors.OutboundBufferLimitError as error:
            raise Disconnected from error
        except nats.errors.Error as error:
            raise Fatal(ConnectionFailed("unavailable", str(error))) from error

    def _check_connected(self) -> None:
        if self.nats.is_closed:
            raise Fatal(self._closed())
        # The library would keep the request and send it once it is connected again, long after the call has ended.
        if not self.nats.is_connected or self.nats.is_reconnecting:
            raise Disconnected

    def _closed(self) -> ConnectionFailed:
        return ConnectionFailed("unavailable", "the NATS connection is closed")

    @contextlib.asynccontextmanager
    async def _reply_to(self, answered: Callable[[Msg], None], wait: float) -> Any:
        """A subject for replies, which ``answered`` gets."""
        if self._inbox_subscription is None:
            try:
                async with asyncio.timeout(wait), self._inbox_made:
                    if self._inbox_subscription is None:
                        inbox = self.nats.new_inbox()
                        self._inbox = inbox
                        self._inbox_subscription = await self.nats.subscribe(f"{inbox}.*", cb=self._on_reply)
            except TimeoutError as error:
                raise Disconnected from error
            except nats.errors.Error as error:
                raise Fatal(self._closed()) from error
        token = secrets.token_hex(8)
        self._waiting[token] = answered
        try:
            yield f"{self._inbox}.{token}"
        finally:
            del self._waiting[token]

    async def _on_reply(self, message: Msg) -> None:
        answered = self._waiting.get(message.subject.rpartition(".")[2])
        if answered is not None:
            answered(message)

    # ---- the number of shards

    async def shards(self, patience: float) -> int | None:
        """The number of shards. One caller at a time waits for the answer; others go on with what is known."""
        if self._shards is not None and not self._shards_suspect:
            return self._shards
        now = time.monotonic()
        if self._shards_asked_at is not None and now - self._shards_asked_at < _DISCOVERY_INTERVAL:
            return self._shards
        self._shards_asked_at = now
        found = await self._discover(min(patience, _DISCOVERY_MAX))
        if found is not None:
            self._shards, self._shards_suspect = found, False
        return self._shards

    async def _discover(self, patience: float) -> int | None:
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def answered(message: Msg) -> None:
            if found.done():
                return
            if _is_no_responders(message):
                found.set_result(None)
                return
            shards = read_shards(message.data, self.prefix)
            if shards is not None:
                found.set_result(shards)

        # A call that lacks a right says so itself.
        with contextlib.suppress(TimeoutError, Failure):
            async with asyncio.timeout(patience):
                self._check_connected()
                async with self._reply_to(answered, patience) as reply_to:
                    await self._publish("$SRV.INFO.nowserving", b"", reply_to, None)
                    return await found
        return None


def read_shards(data: bytes, prefix: str) -> int | None:
    """The number of shards in the answer of a node that serves ``prefix``."""
    try:
        metadata = json.loads(data)["metadata"]
        if metadata.get("prefix", prefix) != prefix:
            return None
        shards = int(metadata["shards"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return shards if shards > 0 else None


def _is_no_responders(message: Msg) -> bool:
    return not message.data and message.headers is not None and message.headers.get("Status") == "503"


def _forbids_sending(refused: str, sent: str, prefix: str) -> bool:
    """Whether a message to ``sent`` was refused under this subject: a server checks rights after its mappings."""
    if refused == sent:
        return True
    plain = f"{prefix}.line."
    mapped = f"{prefix}.shard."
    if not sent.startswith(plain) or not refused.startswith(mapped):
        return False
    return refused[len(mapped) :].partition(".")[2] == sent[len(plain) :]
