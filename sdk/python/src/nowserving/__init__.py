"""The Python SDK of nowserving: enter lines, follow exact places, claim seats, check rate limits, guard handlers. ::

    async with Client.connect("nats://127.0.0.1:4222") as client:
        line = client.line("shop-1")
        ticket = (await line.enter("order-1001")).ticket
        async for place in line.track(ticket):
            print(place.state, place.position)

Every call has one deadline over all its attempts. Until then it finds the leader of the line's shard, follows a change of
leader, and repeats the request: a request that changes something carries one request id in all its attempts, by which the
cluster recognises a copy. A refusal by the cluster is final and raised at once, as :class:`Refused` with its ``code``.
"""

from ._subjects import shard_of_check, shard_of_line
from ._track import Tracker
from .client import Client
from .errors import (
    BadArgument,
    BadReply,
    ConnectionFailed,
    Forbidden,
    NoSlot,
    NowservingError,
    OutcomeUnknown,
    Refused,
    SeatLost,
    Unavailable,
)
from .guard import Guard, Slot
from .limiter import Descriptor, Limiter
from .line import Line
from .places import PlacesFromEvents, Standing
from .types import (
    Board,
    CheckReply,
    DescriptorReply,
    HeldBack,
    Info,
    Lane,
    LineEvent,
    Seen,
    State,
    Status,
    TokenEvent,
)

__all__ = [
    "BadArgument",
    "BadReply",
    "Board",
    "CheckReply",
    "Client",
    "ConnectionFailed",
    "Descriptor",
    "DescriptorReply",
    "Forbidden",
    "Guard",
    "HeldBack",
    "Info",
    "Lane",
    "Limiter",
    "Line",
    "LineEvent",
    "NoSlot",
    "NowservingError",
    "OutcomeUnknown",
    "PlacesFromEvents",
    "Refused",
    "SeatLost",
    "Seen",
    "Slot",
    "Standing",
    "State",
    "Status",
    "TokenEvent",
    "Tracker",
    "Unavailable",
    "shard_of_check",
    "shard_of_line",
]
