"""The errors of calls."""

from __future__ import annotations

from typing import Any


class NowservingError(Exception):
    """Why a call failed.

    ``code`` is one of the contract's codes (``docs/protocol/errors.md``), also for errors that no node has sent.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_ms: int | None = None,
        reason: str | None = None,
        may_have_happened: bool = False,
        last_code: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        #: After how long the cluster suggests another attempt.
        self.retry_after_ms = retry_after_ms
        #: Of ``token_gone``: why the token is gone.
        self.reason = reason
        #: Whether the operation may have had its effect in spite of the error.
        self.may_have_happened = may_have_happened
        #: The code of the cluster's last answer, also of one after which the call was repeated until its deadline.
        self.last_code = last_code

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later without a change by anybody."""
        return False

    def __str__(self) -> str:
        hint = ""
        if self.may_have_happened and self.code != "outcome_unknown":
            hint = " (an earlier attempt of this call may have had its effect)"
        return f"{self.code}: {self.message}{hint}"


class Refused(NowservingError):
    """The cluster refused the request and would refuse it again.

    With ``line_full`` and ``sold_out``, until somebody leaves the line.
    """


class Unavailable(NowservingError):
    """No node could serve the request by the deadline, and nothing happened.

    There is no node, no leader, no quorum, or no connection to NATS, or the cluster has too many requests.
    """

    @property
    def is_transient(self) -> bool:
        """True."""
        return True


class OutcomeUnknown(NowservingError):
    """The deadline passed, and the outcome of an attempt is not known.

    It has happened already, or happens within a second, or never. Repeat an ``enter`` with the same key, or an
    operation on a ticket, to find out.
    """

    @property
    def is_transient(self) -> bool:
        """True."""
        return True


class Forbidden(NowservingError):
    """The NATS server refused the login, or the user lacks the right that the message names."""


class ConnectionFailed(NowservingError):
    """The connection to NATS could not be made, or was closed for good."""


class BadReply(NowservingError):
    """The reply cannot be read by this version of the SDK."""


class BadArgument(NowservingError):
    """An argument was refused before anything was sent."""


class NoSlot(NowservingError):
    """A guard gives no slot; ``code`` says why.

    ==================  ===================================================================  ====
    code                                                                                     HTTP
    ==================  ===================================================================  ====
    ``line_full``       ``seats + queue_limit`` are in the line, or it is sold out           429
    ``waited_too_long`` for the line's ``max_wait_ms``, or the guard's ``max_wait``          504
    ``line_closed``     the line takes nobody now                                            503
    ``removed``         its token was kicked, or timed out; ``reason`` says which            503
    ``unavailable``     the cluster is away, with ``on_unavailable="deny"``                  503
    ``overloaded``      the cluster has too many requests                                    503
    ``busy``            this process has ``in_flight_max`` visits under way, or is draining  503
    ==================  ===================================================================  ====
    """


class SeatLost(NowservingError):
    """The seat of a slot was lost while its work ran: another handler may run in its place."""

    def __init__(self, message: str = "the seat was lost while it was held") -> None:
        super().__init__("seat_lost", message)


def refused(error: Any, *, may_have_happened: bool) -> Refused:
    """The error in a reply."""
    code, message = error.get("code"), error.get("message")
    retry_after_ms, reason = error.get("retry_after_ms"), error.get("reason")
    return Refused(
        str(code),
        str(message),
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
        reason=reason if isinstance(reason, str) else None,
        may_have_happened=may_have_happened,
        last_code=str(code),
    )
