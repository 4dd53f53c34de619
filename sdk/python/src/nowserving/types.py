"""What calls answer, and what events say. Fields that a reply does not have are ``None`` (or as their default says)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from .errors import BadReply

State = Literal["waiting", "admitted", "in_checkout", "gone"]
Holes = tuple[tuple[int, int], ...]

T = TypeVar("T")


def _read(kind: type[T], reply: Any, **parts: Any) -> T:
    """The fields that ``kind`` knows; ``parts`` are those that need work."""
    if not isinstance(reply, dict):
        raise BadReply("outcome_unknown", f"the answer cannot be read: no {kind.__name__}")
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {name: value for name, value in reply.items() if name in known}
    try:
        return kind(**{**values, **parts})
    except TypeError as error:
        raise BadReply("outcome_unknown", f"the answer cannot be read: {error}") from error


def _holes(ranges: Any) -> Holes | None:
    if ranges is None:
        return None
    try:
        return tuple((int(first), int(last)) for first, last in ranges)
    except (TypeError, ValueError) as error:
        raise BadReply("outcome_unknown", f"the answer cannot be read: holes: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Why a line does not admit its next token now."""

    by: str
    phase: str | None = None
    next_at_ms: int | None = None
    next_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A token as it is now: ``docs/protocol/users.md``, "A status"."""

    line: str
    incarnation: int
    lane: str
    token: int
    state: State
    version: int
    #: While waiting: 1 + how many tokens wait before it in its lane.
    position: int | None = None
    #: ``position`` is the line's ``position_cap``, and the true position larger.
    position_capped: bool = False
    #: While waiting: ``position - 1``.
    ahead: int | None = None
    #: While waiting: 1 + how many tokens of all lanes would be admitted before it, as things are.
    turn: int | None = None
    #: While waiting: the median of the time until it is admitted; ``None`` while that is not known.
    eta_ms: int | None = None
    #: Nine tokens in ten wait no longer.
    eta_p90_ms: int | None = None
    eta_from: str | None = None
    phase: str | None = None
    held_back_by: HeldBack | None = None
    call_ahead: bool = False
    admitted_through: int = 0
    #: After how long to ask again. :meth:`nowserving.Line.track` does.
    poll_after_ms: int = 1_000
    at_ms: int = 0
    #: Of the claim: a number that only grows in the line.
    epoch: int | None = None
    expires_at_ms: int | None = None
    #: While it holds a seat: in how long it loses the seat.
    expires_in_ms: int | None = None
    units: int | None = None
    entered_at_ms: int | None = None
    #: Once gone: why.
    reason: str | None = None
    #: After ``enter`` and ``find``, and whenever the token was moved: its ticket, which replaces the former one.
    ticket: str | None = None
    #: The signed pass, if it was asked for.
    #:
    #: ``docs/pass.md``
    signed_pass: str | None = None
    pass_expires_in_ms: int | None = None
    holes: Holes | None = None

    @classmethod
    def read(cls, reply: Any) -> Status:
        """From JSON."""
        if not isinstance(reply, dict):
            raise BadReply("outcome_unknown", "the answer cannot be read: no status")
        held = reply.get("held_back_by")
        return _read(
            cls,
            reply,
            holes=_holes(reply.get("holes")),
            held_back_by=None if held is None else _read(HeldBack, held),
            signed_pass=reply.get("pass"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A lane of a board, with its four pointers."""

    lane: str
    next_token: int
    admitted_through: int
    waiting: int
    done_through: int = 0
    accepts_through: int = 0
    #: In an event: the numbers that stopped waiting without being admitted, since ``prev_version``.
    holes: Holes | None = None


def _lanes(reply: Any) -> tuple[Lane, ...]:
    lanes = reply.get("lanes") if isinstance(reply, dict) else None
    if not isinstance(lanes, list):
        raise BadReply("outcome_unknown", "the answer cannot be read: no lanes")
    return tuple(_read(Lane, lane, holes=_holes(lane.get("holes") if isinstance(lane, dict) else None)) for lane in lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A line as everybody may see it; an event also has ``prev_version``."""

    line: str
    incarnation: int
    version: int
    lanes: tuple[Lane, ...]
    at_ms: int = 0
    phase: str = "open"
    #: Until a draw is done nobody has a place.
    undrawn: bool = False
    seats: int = 0
    admitted: int = 0
    in_checkout: int = 0
    prev_version: int = 0
    #: ``holes`` are all holes between the pointers.
    whole: bool = False

    @classmethod
    def read(cls, reply: Any) -> Board:
        """From JSON."""
        return _read(cls, reply, lanes=_lanes(reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """A board with what users may see of the settings."""

    line: str
    incarnation: int
    version: int
    lanes: tuple[Lane, ...]
    #: ``docs/protocol/users.md``, "Boards and `info`".
    settings: Mapping[str, Any]
    at_ms: int = 0
    phase: str = "open"
    undrawn: bool = False
    seats: int = 0
    admitted: int = 0
    in_checkout: int = 0
    shard: int | None = None
    #: The node that leads the line's shard.
    leader: int | None = None
    held_back_by: HeldBack | None = None
    draw: Mapping[str, Any] | None = None
    newcomer_eta_ms: int | None = None
    newcomer_eta_from: str | None = None

    @classmethod
    def read(cls, reply: Any) -> Info:
        """From JSON."""
        lanes = _lanes(reply)
        held = reply.get("held_back_by")
        return _read(cls, reply, lanes=lanes, held_back_by=None if held is None else _read(HeldBack, held))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of tokens that were marked as seen."""

    line: str
    incarnation: int
    version: int
    #: How many of them are live.
    seen: int
    #: The places in ``tickets``, from 0, of tokens that are gone.
    gone: tuple[int, ...] = ()
    #: The places of texts that are no valid ticket of this line.
    invalid: tuple[int, ...] = ()
    #: Mark them again after this long.
    poll_after_ms: int = 1_000
    at_ms: int = 0

    @classmethod
    def read(cls, reply: Any) -> Seen:
        """From JSON."""
        if not isinstance(reply, dict):
            raise BadReply("outcome_unknown", "the answer cannot be read: no answer to seen")
        return _read(cls, reply, gone=tuple(reply.get("gone") or ()), invalid=tuple(reply.get("invalid") or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """Something happened to a token."""

    line: str
    incarnation: int
    version: int
    event: str
    lane: str
    token: int
    prev_version: int = 0
    at_ms: int = 0
    position: int | None = None
    reason: str | None = None
    epoch: int | None = None
    by: str | None = None
    to_lane: str | None = None
    to_token: int | None = None
    units: int | None = None

    @classmethod
    def read(cls, event: Any) -> TokenEvent:
        """From JSON."""
        return _read(cls, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEvent:
    """Something happened to a line: ``phase``, ``room``, ``quota_renewed``, …"""

    line: str
    incarnation: int
    version: int
    event: str
    prev_version: int = 0
    at_ms: int = 0

    @classmethod
    def read(cls, event: Any) -> LineEvent:
        """From JSON."""
        return _read(cls, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorReply:
    """What the rule of one descriptor says."""

    allowed: bool
    limit: int | None = None
    unit: str | None = None
    burst: int | None = None
    name: str | None = None
    remaining: int | None = None
    reset_ms: int | None = None
    retry_after_ms: int | None = None
    delay_ms: int | None = None
    #: No rule limits it.
    unmatched: bool = False
    unlimited: bool = False
    replaced: bool = False
    shadow: bool = False
    quota: bool = False
    #: There was no room for a counter.
    untracked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReply:
    """Whether a request may pass: ``docs/protocol/limits.md``."""

    allowed: bool
    descriptors: tuple[DescriptorReply, ...] = ()
    limit: int | None = None
    remaining: int | None = None
    reset_ms: int | None = None
    #: After how long the same request passes if nobody else comes; ``None`` if it passes now, or never will.
    retry_after_ms: int | None = None
    #: How long to wait before going on, if a leaking bucket says so.
    delay_ms: int | None = None
    #: The domain has no rules.
    unmatched: bool = False
    #: The cluster did not answer: ``on_unavailable`` has decided.
    without_cluster: bool = False

    @classmethod
    def read(cls, reply: Any) -> CheckReply:
        """From JSON."""
        if not isinstance(reply, dict):
            raise BadReply("outcome_unknown", "the answer cannot be read: no answer to a check")
        descriptors = tuple(_read(DescriptorReply, each) for each in reply.get("descriptors") or ())
        return _read(cls, reply, descriptors=descriptors)
