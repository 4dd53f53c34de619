"""Whether the cluster answers, as far as the calls of one guard or one limiter tell. No I/O.

One call without an answer does not make the cluster away: its reply may have been lost with a leader. It is away when a
call that began after such a doubt fails too, and none was answered since.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Literal

#: While the cluster is away it is asked this often whether it is back, and up to half as long later.
PROBE_EVERY = 0.5
#: A longer patience does not keep others from asking.
_PATIENCE_MAX = 60.0


def next_probe(now: float) -> float:
    """When to ask next."""
    return now + PROBE_EVERY * (1 + random.random() / 2)


class GuardHealth:
    """Of a guard: only a write that is answered shows that writes are served."""

    def __init__(self) -> None:
        self._answered: float | None = None
        self._doubted: float | None = None
        self._here = asyncio.Event()
        self._here.set()

    @property
    def is_away(self) -> bool:
        """The cluster is away."""
        return not self._here.is_set()

    def answered(self) -> None:
        """A write was answered."""
        self._answered, self._doubted = time.monotonic(), None
        self.forget()

    def forget(self) -> None:
        """Nobody asks any more whether the cluster is back."""
        self._here.set()

    def failed(self, sent: float) -> Literal["nothing", "ask", "away"]:
        """A call that began at ``sent`` was not answered."""
        if self._answered is not None and self._answered >= sent:
            return "nothing"
        if self._doubted is None:
            self._doubted = time.monotonic()
            return "ask"
        # One that was sent before the doubt failed for the same reason, perhaps the same lost leader.
        return "away" if sent >= self._doubted else "nothing"

    def set_away(self) -> bool:
        """The cluster is away, unless a write was answered meanwhile. Returns whether that is new."""
        is_new = self._doubted is not None and self._here.is_set()
        if is_new:
            self._here.clear()
        return is_new

    async def back(self) -> None:
        """Returns when the cluster is not away."""
        await self._here.wait()


class LimiterHealth:
    """Of a limiter: while the cluster is away, one call at a time still asks it."""

    def __init__(self) -> None:
        self._answered: float | None = None
        self._doubted: float | None = None
        self._probe_at: float | None = None

    @property
    def is_away(self) -> bool:
        """The cluster is away."""
        return self._probe_at is not None

    def may_ask(self, patience: float) -> bool:
        """Whether a call that begins now asks the cluster."""
        now = time.monotonic()
        if self._probe_at is None:
            return True
        if self._probe_at > now:
            return False
        # Not before this one has ended, whatever comes of it. If it fails, `failed` says when.
        self._probe_at = next_probe(now + min(patience, _PATIENCE_MAX))
        return True

    def answered(self) -> None:
        """A call was answered."""
        self._answered, self._doubted, self._probe_at = time.monotonic(), None, None

    def failed(self, sent: float) -> None:
        """A call that began at ``sent`` was not answered."""
        if self._answered is not None and self._answered >= sent:
            return
        now = time.monotonic()
        if self._doubted is None:
            self._doubted = now
        elif sent >= self._doubted:
            self._probe_at = next_probe(now)
