"""A cluster, or a nats-server alone, on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Cluster:
    """`nowserving dev --restart`, of the program that the environment variable NOWSERVING names."""

    def __init__(self) -> None:
        program = os.environ.get("NOWSERVING") or shutil.which("nowserving")
        if program is None:
            raise RuntimeError("set NOWSERVING to the nowserving program")
        self._folder = Path(tempfile.mkdtemp(prefix="nowserving-py-"))
        self.url = f"nats://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        log = (self._folder / "log").open("w")
        self._process = subprocess.Popen(
            [program, "dev", "--restart", "--nats-port", port, "--data-dir", str(self._folder / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._pids: dict[int, int] = {}
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(90) or self._process.poll() is not None:
            self.stop(keep=True)
            raise RuntimeError(f"nowserving dev did not start: {self._folder / 'log'}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.fullmatch(r"node (\d+) pid (\d+)", line.strip()):
                self._pids[int(found[1])] = int(found[2])
            elif line.startswith("ready"):
                self._ready.set()
        self._ready.set()

    def kill(self, node: int) -> None:
        os.kill(self._pids[node], signal.SIGKILL)

    def stop(self, *, keep: bool = False) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)


class NatsServer:
    """nats-server (NATS_SERVER, or in the PATH) without a cluster, with these users."""

    def __init__(self, users: dict[str, Any]) -> None:
        program = os.environ.get("NATS_SERVER") or shutil.which("nats-server")
        if program is None:
            raise RuntimeError("set NATS_SERVER to the nats-server program")
        self._folder = Path(tempfile.mkdtemp(prefix="nowserving-py-"))
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        entries = [
            {
                "user": name,
                "password": name,
                "permissions": {what: {"allow": subjects} for what, subjects in rights.items()},
            }
            for name, rights in users.items()
        ]
        config: dict[str, Any] = {"host": "127.0.0.1", "port": port}
        if entries:
            config["authorization"] = {"users": entries}
        path = self._folder / "nats.conf"
        # NATS reads JSON, too.
        path.write_text(json.dumps(config))
        self._command = [program, "-c", str(path)]
        self._port = port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=(self._folder / "log").open("a"))
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError("nats-server does not listen")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
