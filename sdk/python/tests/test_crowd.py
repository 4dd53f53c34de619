"""A crowd in one process, and a leader that is killed: nobody is overtaken or lost, and no seat is held twice."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from typing import Any

from nowserving import Client, Guard, Line

from .processes import Cluster


async def line_of(client: Client, **settings: Any) -> Line:
    name = f"crowd-{secrets.token_hex(4)}"
    body = json.dumps({"queue_limit": 1_000, **settings}).encode()
    await client.nats.request(f"nowserving.admin.line.{name}.create", body, timeout=5)
    return client.line(name)


async def kill_leader(cluster: Cluster, line: Line) -> None:
    leader = (await line.info()).leader
    assert leader is not None
    cluster.kill(leader)


def test_visitors(cluster: Callable[[], Cluster]) -> None:
    async def main() -> None:
        async with Client.connect(cluster().url, deadline=20.0) as client:
            line = await line_of(client, seats=10)
            held = most = 0
            seats: list[tuple[int, int]] = []

            async def visit(key: str) -> None:
                nonlocal held, most
                ticket = (await line.enter(key)).ticket
                assert ticket is not None
                position = 1 << 53
                async for place in line.track(ticket):
                    if place.state == "waiting":
                        assert place.position is not None
                        assert place.position <= position
                        position = place.position
                        continue
                    assert place.state == "admitted"
                    seat = await line.claim(ticket)
                    assert seat.epoch is not None
                    seats.append((seat.token, seat.epoch))
                    held, most = held + 1, max(most, held + 1)
                    await asyncio.sleep(0.15)
                    held -= 1
                    await line.complete(ticket, seat.epoch)
                    break

            visits = [asyncio.create_task(visit(f"v{nth}")) for nth in range(200)]
            await asyncio.sleep(1.5)
            await kill_leader(cluster(), line)
            async with asyncio.timeout(40):
                await asyncio.gather(*visits)
            assert most <= 10
            assert {token for token, _ in seats} == set(range(1, 201))
            assert len({epoch for _, epoch in seats}) == 200
            info = await line.info()
            assert (info.admitted, info.in_checkout, info.lanes[0].done_through) == (0, 0, 200)

    asyncio.run(main())


def test_handlers(cluster: Callable[[], Cluster]) -> None:
    async def main() -> None:
        async with Client.connect(cluster().url) as client:
            line = await line_of(client, seats=4, checkout_timeout_ms=5_000)
            guard = Guard(line, on_unavailable="deny")
            running = most = 0

            async def work() -> None:
                nonlocal running, most
                async with guard.acquire():
                    running, most = running + 1, max(most, running + 1)
                    await asyncio.sleep(0.1)
                    running -= 1

            works = [asyncio.create_task(work()) for _ in range(80)]
            await asyncio.sleep(0.7)
            await kill_leader(cluster(), line)
            async with asyncio.timeout(40):
                await asyncio.gather(*works)
                await guard.drained()
            assert most == 4
            info = await line.info()
            assert (info.admitted, info.in_checkout, info.lanes[0].done_through) == (0, 0, 80)

    asyncio.run(main())
