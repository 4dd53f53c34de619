"""What follows a failed attempt: the next subject, the pause before it, or the end of the call. No I/O."""

from __future__ import annotations

import random
from typing import Any, Literal

from .errors import NowservingError, OutcomeUnknown, Unavailable, refused

#: The longest that an attempt waits for its answer: a little over the timeout in the header, so that the cluster's own
#: ``unavailable`` or ``outcome_unknown`` still arrives.
ATTEMPT_MAX = 2.2
#: The least time for an attempt after the first: a shorter one only makes the outcome unknown.
ATTEMPT_MIN = 0.01
#: How long a write is repeated once one of its attempts may have had its effect. The cluster recognises a copy by its
#: request id for two minutes.
REPEAT_MAX = 110.0

#: Codes after which another attempt can succeed.
REPEATED = frozenset({"unavailable", "not_leader", "overloaded", "outcome_unknown"})

Route = Literal["shard", "plain"]


class Failure(Exception):
    """How one attempt failed."""

    #: What to say if it was the last one.
    text = ""
    #: Whether the request may have had its effect.
    is_uncertain = False


class NoResponders(Failure):
    """NATS reports that the subject has no subscribers: nothing happened."""

    text = "no node listens: none runs, or the nodes have another prefix"


class NoAnswer(Failure):
    """Sent, and no reply in time."""

    text = "no answer in time"
    is_uncertain = True


class Disconnected(Failure):
    """Not sent: the connection is down at the moment."""

    text = "no connection to NATS"


class Answered(Failure):
    """The cluster answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error
        self.code = str(error.get("code"))
        self.text = f"{self.code}: {error.get('message')}"
        self.is_uncertain = self.code == "outcome_unknown"


class Fatal(Failure):
    """A further attempt cannot succeed."""

    def __init__(self, error: NowservingError) -> None:
        super().__init__(error)
        self.error = error


class Attempts:
    """The attempts of one call."""

    def __init__(self, *, is_write: bool, shard_known: bool) -> None:
        self._is_write = is_write
        self._shard_known = shard_known
        self._count = 0
        self._delay = 0.02
        self.route: Route = "shard" if shard_known else "plain"
        #: An attempt may have had its effect.
        self.uncertain = False

    def after(self, failure: Failure, left: float) -> float:
        """The pause before the next attempt, which goes to ``route``. Raises the error that ends the call.

        ``left``: seconds until the call's deadline.
        """
        self._count += 1
        if isinstance(failure, Fatal):
            failure.error.may_have_happened |= self.uncertain
            raise failure.error
        if isinstance(failure, Answered) and failure.code not in REPEATED:
            raise refused(failure.error, may_have_happened=self.uncertain)
        if self._is_write and failure.is_uncertain:
            self.uncertain = True
        pause = self._pause(failure)
        if pause + ATTEMPT_MIN >= left:
            raise self._out_of_time(failure)
        self.route = self._other_way(failure)
        return pause

    def _out_of_time(self, failure: Failure) -> NowservingError:
        answer: dict[str, Any] = failure.error if isinstance(failure, Answered) else {}
        code = "outcome_unknown" if self.uncertain else "unavailable"
        text = failure.text
        if answer.get("code") == code:
            text = str(answer.get("message"))
        elif answer and self.uncertain:
            # It may say of its own attempt that nothing happened.
            text = f"an attempt got no answer; the last one: {text}"
        retry_after_ms = answer.get("retry_after_ms")
        kind = OutcomeUnknown if self.uncertain else Unavailable
        return kind(
            code,
            f"{text} (given up after {self._count} attempts)",
            retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
            may_have_happened=self.uncertain,
            last_code=answer.get("code"),
        )

    def _pause(self, failure: Failure) -> float:
        # There is no leader. Any node can be asked at once, and waits for the new leader.
        if isinstance(failure, NoResponders) and self.route == "shard":
            return 0.0
        # 20 ms doubling to 250 ms, each with up to as much again at random.
        pause = self._delay * (1 + random.random())
        self._delay = min(self._delay * 2, 0.25)
        if isinstance(failure, Answered):
            retry_after_ms = failure.error.get("retry_after_ms")
            if isinstance(retry_after_ms, int):
                # Clients that were refused at one moment get the same time: their return is spread by a quarter.
                pause = max(pause, retry_after_ms / 1000 * (1 + random.random() / 4))
        return pause

    def _other_way(self, failure: Failure) -> Route:
        if self.route == "plain":
            return "shard" if self._shard_known else "plain"
        # A busy leader is reachable: a detour over another node would only add load.
        is_busy = isinstance(failure, Answered) and failure.code == "overloaded"
        return "shard" if is_busy else "plain"
