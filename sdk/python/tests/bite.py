"""Breaks the SDK on purpose, once or more for each scenario, and checks that the scenario fails then.

    NOWSERVING=…/nowserving python -m tests.bite [words of the scenarios]

It works on a copy of `src`, in a folder of its own. Some minutes; not a part of `check.sh`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]

#: A scenario, a file, and what is put there in place of what.
BREAKS = [
    ("shard-hashes", "_subjects.py", "0x01000193", "0x01000195"),
    ("shard-hashes", "_subjects.py", "len(text).to_bytes(2", "len(text.decode()).to_bytes(2"),
    ("place-from-boards", "_place.py", "first <= disjoint[-1][1] + 1", "False"),
    ("place-from-boards", "_place.py", "if version <= self.version:", "if version < self.version:"),
    ("place-from-boards", "_view.py", "stale = last is not None and last.version > status.version", "stale = False"),
    ("place-from-boards", "_view.py", "self.poll_at, self.asks_soon = now, True", "pass"),
    ("gaps-in-boards", "_place.py", "if is_gap(self.version, prev_version):", "if False:"),
    ("gaps-in-boards", "_view.py", "if board.whole and last.token", "if False and last.token"),
    ("gaps-in-boards", "_view.py", "if lane is None or lane.holes is None:", "if lane is None:"),
    ("gaps-in-boards", "_view.py", "if board.incarnation != last.incarnation:", "if False:"),
    ("place-and-draw", "_view.py", "if was_undrawn:", "if False:"),
    ("place-and-draw", "_view.py", "if last is None or moved:", "if last is None:"),
    ("places-from-events", "places.py", "self.whole = count + lane.waiting ==", "self.whole = True or count =="),
    ("places-from-events", "places.py", "lane.newcomers[event.token] = position", "pass"),
    ("places-from-events", "places.py", 'event.event == "restored"', "False"),
    ("places-from-events", "places.py", "if incarnation > self._incarnation:", "if False:"),
    ("visit", "line.py", 'call("claim", body', 'call("status", body'),
    ("visit", "_view.py", "return self.last if changed else None\n        # A board has", "return None\n        # A board has"),
    ("refusals", "errors.py", "reason=reason if isinstance(reason, str) else None,", "reason=None,"),
    ("refusals", "_attempts.py", "failure.code not in REPEATED", "False"),
    ("exact-places", "_feed.py", "self._push(Board.read(json.loads(message.data)))", "pass"),
    ("exact-places", "_place.py", "self._dig(self._holes + holes)", "self._dig(holes)"),
    ("exact-places", "_view.py", "turn=position if len(board.lanes) == 1 and not capped else None", "turn=last.turn"),
    ("moved-ticket", "_view.py", "self.poll_at, self.asks_soon = now, True", "pass"),
    ("leader-killed", "_attempts.py", 'if isinstance(failure, NoResponders) and self.route == "shard":', "if True:\n            raise self._out_of_time(failure)\n        if False:"),
    ("leader-killed", "_attempts.py", "pause = self._pause(failure)", "raise self._out_of_time(failure)"),
    ("outcome-unknown", "_connection.py", 'headers["Nowserving-Request-Id"] = request_id', 'headers["Nowserving-Request-Id"] = secrets.token_hex(16)'),
    ("outcome-unknown", "_connection.py", "request_id = secrets.token_hex(16) if is_write else None", "request_id = secrets.token_hex(16)"),
    ("outcome-unknown", "_attempts.py", "raise refused(failure.error, may_have_happened=self.uncertain)", "raise refused(failure.error, may_have_happened=False)"),
    ("nothing-happened", "_attempts.py", "pause = max(pause, retry_after_ms / 1000 * (1 + random.random() / 4))", "pass"),
    ("nothing-happened", "_connection.py", "shard_subject = on_shard(shards) if on_shard and shards else None", "shard_subject = None"),
    ("nothing-happened", "_connection.py", 'if metadata.get("prefix", prefix) != prefix:', "if False:"),
    ("nothing-happened", "_attempts.py", "if pause + ATTEMPT_MIN >= left:", "if ATTEMPT_MIN >= left:"),
    ("deadlines", "_attempts.py", "if self._is_write and failure.is_uncertain:", "if failure.is_uncertain:"),
    ("deadlines", "_attempts.py", "is_uncertain = True", "is_uncertain = False"),
    ("deadlines", "_connection.py", "wait = min(max(deadline - sent_at, 0.0), ATTEMPT_MAX)", "wait = ATTEMPT_MAX"),
    ("missing-right", "_connection.py", "found = _VIOLATION.search(str(error))", "found = None"),
    ("missing-right", "_connection.py", "self._lasting = (self._connects, refusal)", "return"),
    ("missing-right", "client.py", "if _is_login(problem):", "if False:"),
    ("limits", "limiter.py", 'shard = shard_of_check(domain, body["descriptors"][0], shards)', 'shard = (shard_of_check(domain, body["descriptors"][0], shards) + 1) % shards'),
    ("limits", "limiter.py", 'if hits != 1:', "if False:"),
    ("limits", "limiter.py", "if not 1 <= len(lists) <= 16:", 'body: object = None\n    if not lists:\n        raise ValueError("x")\n    if False:'),
    ("guard", "guard.py", "lease = lease.renewed(sent, renewed.expires_in_ms / 1000)", "await asyncio.sleep(60)"),
    ("guard", "guard.py", "slot._lose()", "pass"),
    ("guard", "guard.py", "if not turn.done():\n                raise _CallerGone", "await turn"),
    ("guard", "guard.py", "await guard.give_back(least,", "await _until(None); await guard.give_back(least,"),
]  # fmt: skip


def bites(scenario: str, file: str, old: str, new: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(HERE / "src" / "nowserving", folder / "nowserving")
        path = folder / "nowserving" / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new))
        # Before an installed package, which another folder could hold.
        env = {**os.environ, "PYTHONPATH": f"{folder}:{HERE}"}
        arguments = ["-q", "-x", "-p", "no:cacheprovider", f"tests/test_contract.py::test_scenario[{scenario}]"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=HERE, env=env, capture_output=True, text=True
        )
        # 1: a test has failed. Anything else is a broken experiment.
        assert done.returncode in (0, 1), done.stdout
        lines = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
        print(f"{'fails' if done.returncode else 'PASSES'}: {scenario}: {file}: {old!r}: {' '.join(lines[:1])}", flush=True)
        return done.returncode == 1


def main() -> None:
    words = sys.argv[1:]
    chosen = [each for each in BREAKS if not words or any(word in each[0] for word in words)]
    passed = [each for each in chosen if not bites(*each)]
    scenarios = {path.stem for path in (HERE.parents[1] / "contract").glob("*.json")}
    unbroken = scenarios - {each[0] for each in BREAKS}
    assert not unbroken, f"no break for {unbroken}"
    sys.exit(len(passed))


if __name__ == "__main__":
    main()
