"""The program in the README does what the README says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nats

from nowserving import Client

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
