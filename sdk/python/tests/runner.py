"""Runs the scenarios of `contract/` with this SDK. The format is in `contract/README.md`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from nowserving import (
    Board,
    Client,
    Guard,
    NowservingError,
    PlacesFromEvents,
    Slot,
    Status,
    Tracker,
    shard_of_check,
    shard_of_line,
)
from nowserving._view import View

from .processes import Cluster, NatsServer

CONTRACT = Path(__file__).parents[3] / "contract"
REPEATED = {"unavailable", "not_leader", "overloaded", "outcome_unknown"}


class Mismatch(AssertionError):
    """A step did not do what the scenario says."""


def scenarios() -> list[Path]:
    """All by name; those that kill a leader come last, as the others expect a cluster at rest."""

    def kills(path: Path) -> bool:
        return any(step["do"] == "kill_leader" for step in json.loads(path.read_text())["steps"])

    found = sorted(CONTRACT.glob("*.json"), key=lambda path: (kills(path), path))
    assert found, f"no scenarios in {CONTRACT}"
    return found


# ---- matchers


def mismatch(matcher: Any, value: Any, at: str = "") -> str | None:
    """Why the value does not match; `None` if it does."""
    where = at or "the result"
    if isinstance(matcher, dict):
        signs = [name for name in matcher if name.startswith("$")]
        if signs:
            return next((why for sign in signs if (why := _sign(sign, matcher[sign], value, where))), None)
        if not isinstance(value, dict):
            return f"{where}: {value!r} is no object"
        tried = (mismatch(part, value.get(name), f"{at}.{name}".strip(".")) for name, part in matcher.items())
        return next((why for why in tried if why), None)
    if isinstance(matcher, list):
        if not isinstance(value, list) or len(value) != len(matcher):
            return f"{where}: {value!r} is no list of {len(matcher)}"
        tried = (mismatch(part, value[nth], f"{at}[{nth}]") for nth, part in enumerate(matcher))
        return next((why for why in tried if why), None)
    same = value == matcher and isinstance(value, bool) == isinstance(matcher, bool)
    return None if same else f"{where}: {value!r}, expected {matcher!r}"


def _sign(sign: str, expected: Any, value: Any, where: str) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match sign:
        case "$missing":
            holds = (value is None) == expected
        case "$at_least":
            holds = is_number and value >= expected
        case "$at_most":
            holds = is_number and value <= expected
        case "$contains":
            holds = isinstance(value, str) and expected in value
        case "$is":
            holds = isinstance(value, str) if expected == "text" else is_number
            assert expected in ("text", "number"), expected
        case "$not":
            holds = mismatch(expected, value) is not None
        case "$any":
            holds = any(mismatch(each, value) is None for each in expected)
        case _:
            raise Mismatch(f"no matcher {sign}")
    return None if holds else f"{where}: {value!r}, expected {sign} {expected!r}"


def plain(value: Any) -> Any:
    """What the SDK hands out, as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if "signed_pass" in fields:
            fields["pass"] = fields.pop("signed_pass")
        return fields
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


# ---- the stand-in


class StandIn:
    """Stands between the SDK and the cluster."""

    def __init__(self, nc: Nats, prefix: str, answers: list[Any], shards: int | None) -> None:
        self._nc = nc
        self._prefix = prefix
        self._answers = list(answers)
        self._shards = shards
        self._seen: list[tuple[str, str | None, bytes]] = []

    async def open(self) -> None:
        await self._nc.subscribe(f"{self._prefix}.>", cb=self._on_request)
        if self._shards is not None:
            await self._nc.subscribe("$SRV.INFO.nowserving", cb=self._on_discovery)
        await self._nc.flush()

    def seen(self) -> dict[str, Any]:
        ids = [request_id for _, request_id, _ in self._seen]
        return {
            "subjects": [subject for subject, _, _ in self._seen],
            "request_ids": ids,
            "distinct_ids": len({each for each in ids if each is not None}),
            "distinct_bodies": len({body for _, _, body in self._seen}),
        }

    async def _on_discovery(self, message: Msg) -> None:
        metadata = {"prefix": self._prefix, "shards": str(self._shards)}
        await self._nc.publish(message.reply, json.dumps({"name": "nowserving", "metadata": metadata}).encode())

    async def _on_request(self, message: Msg) -> None:
        words = message.subject.split(".")
        if not message.reply or (len(words) > 1 and words[1] == "event"):
            return
        headers = message.headers or {}
        self._seen.append((message.subject, headers.get("Nowserving-Request-Id"), message.data))
        answer: Any = self._answers.pop(0) if self._answers else "pass"
        if answer == "silence":
            return
        if answer in ("pass", "lose") or answer.get("passed_on"):
            # `line.<line>.<op>`, `shard.<n>.<line>.<op>`, `limit.<domain>.check` or `leader.<n>.limit.<domain>.check`.
            words = message.subject[len(self._prefix) + 1 :].split(".")
            words = {"shard": ["line", *words[2:]], "leader": words[2:]}.get(words[0], words)
            subject = f"nowserving.{'.'.join(words)}"
            reply = await self._nc.request(subject, message.data, timeout=5, headers=message.headers)
            if answer == "pass":
                await self._nc.publish(message.reply, reply.data, headers=reply.headers)
            if answer in ("pass", "lose"):
                return
        error = {name: value for name, value in answer.items() if name != "passed_on"}
        marks = {"Nats-Service-Error": error["message"], "Nats-Service-Error-Code": "503"}
        await self._nc.publish(message.reply, json.dumps({"error": error}).encode(), headers=marks)


# ---- one scenario


class Run:
    """One scenario."""

    def __init__(self, scenario: dict[str, Any], cluster: Callable[[], Cluster]) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._names: dict[str, Any] = {"random": secrets.token_hex(16)}
        self._names["line"] = f"l{self._names['random'][:12]}"
        self._names["domain"] = f"d{self._names['random'][:12]}"
        self._clients: dict[str, Client] = {}
        self._trackers: dict[str, Tracker] = {}
        self._last: dict[str, Status] = {}
        self._guards: dict[str, Guard] = {}
        self._slots: dict[str, Slot] = {}
        self._asking: dict[str, asyncio.Task[Slot]] = {}
        self._places = PlacesFromEvents()
        self._view = View(time.monotonic())
        self._stand_in: StandIn | None = None
        self._server: NatsServer | None = None
        self._url = ""
        self._nc: Nats | None = None

    async def all(self) -> None:
        needs = self._scenario["needs"]
        try:
            if needs == "cluster":
                self._url = self._cluster().url
                self._nc = await nats.connect(self._url)
                self._clients[""] = await Client.connect(self._url)
                if "line" in self._scenario:
                    await self._operator("line", self._names["line"], "create", self._scenario["line"])
                if "rules" in self._scenario:
                    await self._apply(self._put(self._scenario["rules"]))
            elif needs == "nats":
                self._server = NatsServer(self._scenario["users"])
                self._url = self._server.url
            else:
                assert needs == "nothing", needs
            await self._steps(self._scenario["steps"], "")
        finally:
            for task in self._asking.values():
                task.cancel()
            for client in self._clients.values():
                await client.close()
            if self._nc is not None:
                await self._nc.close()
            if self._server is not None:
                self._server.stop()

    async def _steps(self, steps: list[Any], within: str) -> None:
        for nth, step in enumerate(steps):
            at = f"{within}{nth + 1} ({step['do']})"
            if step["do"] == "repeat":
                for time_ in range(1, step["with"]["times"] + 1):
                    self._names["nth"] = time_
                    await self._steps(step["with"]["steps"], f"{at}, {time_}. time: ")
            else:
                await self._step(step, at)

    async def _step(self, step: dict[str, Any], at: str) -> None:
        known = {"do", "with", "client", "expect", "fails", "keep", "within_ms", "at_least_ms", "why"}
        assert not step.keys() - known, f"step {at}: unknown {step.keys() - known}"
        most = step.get("within_ms", 10_000) / 1000
        begin = time.monotonic()
        result: Any = None
        error: NowservingError | None = None
        try:
            async with asyncio.timeout(most):
                result = plain(await self._do(step))
        except NowservingError as raised:
            error = raised
        except TimeoutError:
            raise Mismatch(f"step {at}: took more than {most} s") from None
        took = time.monotonic() - begin
        if took < step.get("at_least_ms", 0) / 1000:
            raise Mismatch(f"step {at}: took only {took} s")
        if "fails" in step:
            if error is None:
                raise Mismatch(f"step {at}: succeeded with {result!r}")
            names = ("code", "message", "retry_after_ms", "reason", "may_have_happened")
            result = {name: getattr(error, name) for name in names}
        elif error is not None:
            raise Mismatch(f"step {at}: {error}") from error
        why = mismatch(self._put(step.get("fails", step.get("expect", {"$any": [None, {"$not": None}]}))), result)
        if why:
            raise Mismatch(f"step {at}: {why}")
        for name, path in step.get("keep", {}).items():
            part = result
            for word in filter(None, path.split(".")):
                part = part[int(word)] if isinstance(part, list) else part[word]
            self._names[self._put(name)] = part

    def _put(self, value: Any) -> Any:
        """Puts what the names stand for."""
        if isinstance(value, dict):
            return {name: self._put(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self._put(part) for part in value]
        if not isinstance(value, str):
            return value
        alone = re.fullmatch(r"\$([a-z][a-z0-9_]*)", value)
        if alone and alone[1] in self._names:
            return self._names[alone[1]]
        return re.sub(
            r"\$([a-z][a-z0-9_]*)",
            lambda found: str(self._names[found[1]]) if found[1] in self._names else found[0],
            value,
        )

    async def _do(self, step: dict[str, Any]) -> Any:
        op: str = step["do"]
        # `t$nth` is `t3`, and then perhaps the name of something.
        args = self._put(self._put(step.get("with", {})))
        client = self._clients.get(step.get("client", ""))
        if "client" in step and client is None:
            raise Mismatch(f"no client {step['client']}")
        words = op.split(".")
        if op in ("shard_of_line", "shard_of_check"):
            return shard_of_line(**args) if op == "shard_of_line" else shard_of_check(**args)
        if words[0] == "watcher":
            return self._watcher(words[1], args)
        if words[0] == "places":
            return self._of_places(words[1], args)
        if words[0] == "stand_in":
            return await self._of_stand_in(op, args)
        if op == "connect":
            return await self._connect(**args)
        if op == "wait":
            return await asyncio.sleep(args["ms"] / 1000)
        if op == "operator":
            return await self._operator("line", self._names["line"], args["op"], args["body"])
        if op == "request":
            return await self._request(args["subject"], args["body"], args.get("headers"))
        assert client is not None, "needs a cluster"
        if op == "kill_leader":
            leader = (await client.line(self._names["line"]).info()).leader
            assert leader is not None
            return self._cluster().kill(leader)
        if op == "check":
            limiter = client.limiter(self._names["domain"], on_unavailable="fail", patience=5.0)
            lists = [[(entry["key"], entry.get("value", "")) for entry in each] for each in args.pop("descriptors")]
            return await limiter.check(*lists, **args)
        if words[0] == "track":
            return await self._track(words, client, args)
        if words[0] == "guard":
            return await self._guard(words[1], client, args)
        call: Callable[..., Awaitable[Any]] = getattr(client.line(self._names["line"]), op)
        return await call(**args)

    def _watcher(self, what: str, args: dict[str, Any]) -> Any:
        now = time.monotonic()
        laid_over = {**self._scenario[what], **args[what]}
        if what == "status":
            self._view.status(Status.read(laid_over), now)
        else:
            self._view.board(Board.read(laid_over), now)
        last = self._view.last
        return {"position": last.position if last else None, "asks": self._view.asks_soon}

    def _of_places(self, what: str, args: dict[str, Any]) -> Any:
        if what == "standing":
            return self._places.standing(**args)
        if what == "board":
            event = {**self._scenario["board"], **args["board"]}
        else:
            event = {**self._scenario["event"], **args["event"]}
        subject = {"board": "board", "line": "line", "token": f"token.{event.get('lane')}.{event.get('token')}"}[what]
        self._places.message(f"nowserving.event.{event['line']}.{subject}", json.dumps(event).encode())
        return None

    async def _of_stand_in(self, op: str, args: dict[str, Any]) -> Any:
        if op == "stand_in":
            assert self._nc is not None, "needs a cluster"
            self._stand_in = StandIn(self._nc, args["prefix"], args["answers"], args.get("shards"))
            return await self._stand_in.open()
        assert op == "stand_in.seen"
        assert self._stand_in is not None
        return self._stand_in.seen()

    async def _connect(
        self,
        name: str,
        prefix: str = "nowserving",
        user: str | None = None,
        password: str | None = None,
        deadline_ms: int = 10_000,
    ) -> None:
        options: dict[str, Any] = {} if user is None else {"user": user, "password": password or user}
        self._clients[name] = await Client.connect(self._url, prefix=prefix, deadline=deadline_ms / 1000, **options)

    async def _track(self, words: list[str], client: Client, args: dict[str, Any]) -> Any:
        name = args["name"]
        if words == ["track"]:
            self._trackers[name] = client.line(self._names["line"]).track(args["ticket"])
            return None
        if words[1] == "end":
            async for status in self._trackers[name]:
                raise Mismatch(f"it goes on: {status}")
            return None
        assert words[1] == "until"
        async for status in self._trackers[name]:
            last = self._last.get(name)
            self._last[name] = status
            if last and last.lane == status.lane and (status.position or 0) > (last.position or 1 << 53):
                raise Mismatch(f"the position grows: {last.position}, {status.position}")
            if mismatch(args["until"], plain(status)) is None:
                return status
        raise Mismatch(f"the tracker has ended with {self._last.get(name)}")

    async def _guard(self, what: str, client: Client, args: dict[str, Any]) -> Any:
        name = args["name"]
        if what == "begin" or what == "acquire":
            guard = self._guards.setdefault("", Guard(client.line(self._names["line"]), patience=5.0))
            wait_ms = args.get("max_wait_ms")
            max_wait = None if wait_ms is None else wait_ms / 1000

            async def acquire() -> Slot:
                return await guard.acquire(max_wait=max_wait)

            self._asking[name] = asyncio.create_task(acquire())
            if what == "begin":
                return None
        if what in ("acquire", "await"):
            self._slots[name] = await asyncio.shield(self._asking[name])
            return {"epoch": self._slots[name].epoch}
        if what == "abandon":
            assert self._asking[name].cancel()
            return None
        assert what in ("release", "lost"), what
        slot = self._slots[name]
        return await (slot.release() if what == "release" else slot.lost())

    async def _apply(self, rules: str) -> None:
        await self._admin("nowserving.admin.limit.apply", {"rules": rules})
        # Each node learns of them soon after.
        await asyncio.sleep(1)

    async def _operator(self, what: str, name: str, op: str, body: Any) -> Any:
        return await self._admin(f"nowserving.admin.{what}.{name}.{op}", body)

    async def _admin(self, subject: str, body: Any) -> Any:
        headers = {"Nowserving-Request-Id": secrets.token_hex(16)}
        for _ in range(100):
            try:
                reply = await self._request(subject, body, headers)
            except (TimeoutError, nats.errors.Error):
                await asyncio.sleep(0.1)
                continue
            code = reply.get("error", {}).get("code")
            if code not in REPEATED:
                if code:
                    raise Mismatch(f"{subject}: {reply['error']}")
                return reply
            await asyncio.sleep(0.1)
        raise Mismatch(f"{subject}: no answer")

    async def _request(self, subject: str, body: Any, headers: dict[str, str] | None) -> Any:
        assert self._nc is not None, "needs a cluster"
        reply = await self._nc.request(subject, json.dumps(body).encode(), timeout=2.2, headers=headers)
        return json.loads(reply.data)


async def run(path: Path, cluster: Callable[[], Cluster]) -> None:
    """Runs one scenario, and raises what is wrong."""
    await Run(json.loads(path.read_text()), cluster).all()
