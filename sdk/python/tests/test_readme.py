"""The program in the README does what the README says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats

from nowserving import Client, Guard

from .processes import Cluster


def test_the_ten_lines(cluster: Callable[[], Cluster], tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    url = cluster().url
    assert "nats://127.0.0.1:4222" in programs[0]
    program = tmp_path / "program.py"
    program.write_text(programs[0].replace("nats://127.0.0.1:4222", url))

    async def main() -> str:
        nc = await nats.connect(url)
        await nc.request("nowserving.admin.line.shop-1.create", b'{"seats": 1, "queue_limit": 5}', timeout=5)
        await nc.close()
        async with Client.connect(url) as client:
            line = client.line("shop-1")
            first = await line.enter("order-1000")
            assert first.ticket is not None
            running = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=subprocess.PIPE)
            assert running.stdout is not None
            waiting = await running.stdout.readline()
            await line.leave(first.ticket)
            out, _ = await asyncio.wait_for(running.communicate(), 20)
            assert running.returncode == 0
            info = await line.info()
            assert (info.admitted, info.in_checkout, info.lanes[0].next_token) == (0, 0, 3)
            return (waiting + out).decode()

    lines = asyncio.run(asyncio.wait_for(main(), 40)).splitlines()
    assert lines[0].startswith("waiting 1 ")
    assert lines[-1].startswith("admitted None")


def test_the_other_programs(cluster: Callable[[], Cluster]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[1:]
    assert len(programs) == 2
    url = cluster().url
    text = "async def run(client):\n" + textwrap.indent("\n".join(programs), "    ") + "\n    return reply, slot\n"
    names: dict[str, Any] = {"Guard": Guard}
    exec(text, names)

    async def main() -> None:
        nc = await nats.connect(url)
        await nc.request("nowserving.admin.line.reports.create", b'{"seats": 1, "queue_limit": 5}', timeout=5)
        await nc.close()
        async with Client.connect(url) as client:
            reply, slot = await names["run"](client)
            assert (reply.allowed, reply.unmatched) == (True, True)
            assert (slot.kind, slot.epoch) == ("seat", 1)
            info = await client.line("reports").info()
            assert (info.in_checkout, info.lanes[0].done_through) == (0, 1)

    asyncio.run(asyncio.wait_for(main(), 40))
