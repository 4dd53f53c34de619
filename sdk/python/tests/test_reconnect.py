"""The NATS server dies and comes back, with a made-up node behind it."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from nowserving import BadArgument, Client, ConnectionFailed, Status, Unavailable

from .processes import NatsServer


class Node:
    """Answers `status` with a position, and counts what it is asked."""

    def __init__(self) -> None:
        self.position = 5
        self.version = 10
        self.asked: list[dict[str, Any]] = []
        self.left: list[str] = []

    async def open(self, url: str) -> None:
        self.nc = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        await self.nc.subscribe("nowserving.line.l.*", cb=self._on_request)
        await self.nc.flush()

    async def _on_request(self, message: Msg) -> None:
        body = json.loads(message.data)
        head = {"line": "l", "incarnation": 1, "lane": "normal", "token": 9, "version": self.version, "at_ms": 0}
        if message.subject.endswith("status"):
            self.asked.append(body)
            more = {"state": "waiting", "position": self.position, "admitted_through": 9 - self.position}
            more |= {"holes": [], "poll_after_ms": 60_000}
        else:
            assert message.headers is not None
            self.left.append(message.headers["Nowserving-Request-Id"])
            more = {"state": "gone", "reason": "left"}
        await message.respond(json.dumps({**head, **more}).encode())


def test_places_and_calls_go_on_after_a_reconnect() -> None:
    async def main() -> None:
        server = NatsServer({})
        node = Node()
        try:
            await node.open(server.url)
            async with Client.connect(server.url) as client:
                line = client.line("l")
                tracker = line.track("ticket")
                assert (await anext(tracker)).position == 5
                waiting: asyncio.Task[Status] = asyncio.create_task(anext(tracker))
                server.kill()
                await asyncio.sleep(0.5)
                with pytest.raises(Unavailable) as away:
                    await line.with_deadline(0.3).leave("ticket")
                assert "no connection to NATS" in away.value.message
                assert not away.value.may_have_happened
                # It waits for the connection, and is sent then, once.
                leaving = asyncio.create_task(line.leave("ticket"))
                await asyncio.sleep(0.3)
                node.position, node.version = 3, 20
                server.start()
                status = await asyncio.wait_for(waiting, 8)
                assert (status.position, status.version) == (3, 20)
                # It has missed boards, so it asked for the holes, and long before `poll_after_ms`.
                assert [each.get("holes") for each in node.asked] == [True, True]
                assert (await asyncio.wait_for(leaving, 8)).reason == "left"
                assert len(node.left) == 1
            with pytest.raises(ConnectionFailed):
                await line.info()
            await node.nc.close()
        finally:
            server.stop()

    asyncio.run(main())


def test_a_tracker_that_nobody_holds_unsubscribes_and_large_requests_are_refused() -> None:
    async def main() -> None:
        server = NatsServer({})
        node = Node()
        try:
            await node.open(server.url)
            async with Client.connect(server.url) as client:
                line = client.line("l")
                async for place in line.track("ticket"):
                    assert place.position == 5
                    break
                gc.collect()
                await asyncio.sleep(0.6)
                # Of the two subscriptions to events none is left: nobody gets this, which NATS says.
                with pytest.raises(nats.errors.NoRespondersError):
                    await node.nc.request("nowserving.event.l.board", b"", timeout=2)
                with pytest.raises(BadArgument, match="max_payload"):
                    await line.status("x" * 2_000_000)
                assert (await line.status("ticket")).position == 5
            await node.nc.close()
        finally:
            server.stop()

    asyncio.run(main())


def test_no_server_is_an_error_within_the_deadline() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionFailed):
            async with asyncio.timeout(5):
                await Client.connect("nats://127.0.0.1:1", deadline=1.0)

    asyncio.run(main())


def test_a_connection_of_ones_own() -> None:
    async def main() -> None:
        server = NatsServer({"shop": {"publish": ["x"], "subscribe": ["_INBOX.>"]}})
        nc = Nats()
        client = Client.from_nats(nc, deadline=2.0)
        try:
            await nc.connect(server.url, user="shop", password="shop", error_cb=client.on_nats_error)
            with pytest.raises(Exception, match=r"may not publish to nowserving\.line\.l\.info"):
                async with asyncio.timeout(1.5):
                    await client.line("l").info()
            async with client:
                pass
            assert nc.is_connected, "it stays its owner's to close"
            await nc.close()
        finally:
            server.stop()

    asyncio.run(main())
