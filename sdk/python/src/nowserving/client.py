"""The client: one NATS connection, shared by all its lines and limiters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Literal

import nats.errors
from nats.aio.client import Client as Nats

from ._connection import Connection, login_refused
from ._feed import Feeds
from ._subjects import prefix as checked_prefix
from .errors import ConnectionFailed, NowservingError
from .limiter import Limiter
from .line import Line

#: Between two attempts to connect, in seconds.
_PAUSE = 0.25


class Client:
    """A connection to a cluster. ::

    async with Client.connect("nats://127.0.0.1:4222") as client:
        line = client.line("shop-1")
    """

    def __init__(self, connection: Connection, feeds: Feeds, deadline: float, owned: bool) -> None:
        """Use :meth:`connect` or :meth:`from_nats`."""
        self._connection = connection
        self._feeds = feeds
        self._deadline = deadline
        self._owned = owned

    @staticmethod
    def connect(
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "nowserving",
        deadline: float = 10.0,
        **nats_options: Any,
    ) -> Connecting:
        """Connects to the NATS server(s); ``await`` it, or use it with ``async with``.

        ``prefix``: the first word(s) of every subject. ``deadline``: how many seconds connecting may take, and then each
        call, all its attempts together. ``nats_options`` are those of nats-py's ``connect``: ``user`` and ``password``,
        ``user_credentials``, ``nkeys_seed``, ``tls``, ``inbox_prefix``, ``name``, …

        Raises :class:`~nowserving.ConnectionFailed` if no server can be reached, :class:`~nowserving.Forbidden` if it
        refuses the login, :class:`~nowserving.BadArgument` for a malformed prefix.
        """
        checked_prefix(prefix)
        return Connecting(_connect(servers, prefix, deadline, nats_options))

    @staticmethod
    def from_nats(nats: Nats, *, prefix: str = "nowserving", deadline: float = 10.0) -> Client:
        """Uses a NATS connection of your own, which stays yours to close.

        Report its errors, or calls without the necessary rights end at their deadline::

            nc = nats.aio.client.Client()
            client = Client.from_nats(nc)
            await nc.connect("nats://127.0.0.1:4222", error_cb=client.on_nats_error)
        """
        connection = Connection(nats, checked_prefix(prefix))
        return Client(connection, Feeds(connection), deadline, owned=False)

    async def on_nats_error(self, error: Exception) -> None:
        """Takes an error of the NATS connection: its ``error_cb``, for :meth:`from_nats`."""
        self._connection.note_error(error)

    @property
    def nats(self) -> Nats:
        """The NATS connection underneath."""
        return self._connection.nats

    @property
    def prefix(self) -> str:
        """The first word(s) of every subject."""
        return self._connection.prefix

    @property
    def deadline(self) -> float:
        """How many seconds a call may take, all its attempts together."""
        return self._deadline

    def with_deadline(self, seconds: float) -> Client:
        """The same client, over the same connection, with another deadline for its calls."""
        return Client(self._connection, self._feeds, seconds, owned=False)

    def line(self, name: str) -> Line:
        """A line, for its users. Sends no request.

        Raises :class:`~nowserving.BadArgument` if ``name`` is not ``[A-Za-z0-9_-]{1,64}``.
        """
        return Line(self, name)

    def limiter(
        self,
        domain: str,
        *,
        on_unavailable: Literal["allow", "deny", "fail"] = "allow",
        patience: float = 1.0,
    ) -> Limiter:
        """The rate limits of a domain. Sends no request.

        ``patience``: how many seconds the cluster may take to answer a check, all attempts together.
        ``on_unavailable``: what becomes of a check that is not answered within that. ``allow``: the request passes.
        ``deny``: it is refused. ``fail``: the error is raised, for callers that decide themselves.

        Raises :class:`~nowserving.BadArgument` if ``domain`` is not ``[A-Za-z0-9_-]{1,64}``.
        """
        return Limiter(self, domain, on_unavailable=on_unavailable, patience=patience)

    async def close(self) -> None:
        """Closes the connection, if :meth:`connect` made it."""
        if self._owned:
            await self.nats.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connection(self) -> Connection:
        """Not for callers."""
        return self._connection

    @property
    def feeds(self) -> Feeds:
        """Not for callers."""
        return self._feeds


class Connecting(Awaitable[Client]):
    """A client that is being connected: ``await`` it, or use it with ``async with``."""

    def __init__(self, connecting: Any) -> None:
        self._connecting = connecting
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        """The client."""
        client: Client = yield from self._connecting.__await__()
        return client

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


async def _connect(servers: str | Sequence[str], prefix: str, deadline: float, options: dict[str, Any]) -> Client:
    until = time.monotonic() + deadline
    while True:
        client, problem = await _attempt(servers, prefix, deadline, until, dict(options))
        if client is not None:
            return client
        is_temporary = isinstance(problem, (OSError, EOFError, nats.errors.Error)) and not _is_login(problem)
        if not is_temporary or time.monotonic() + _PAUSE >= until:
            raise _not_connected(problem, deadline)
        await asyncio.sleep(_PAUSE)


async def _attempt(
    servers: str | Sequence[str], prefix: str, deadline: float, until: float, options: dict[str, Any]
) -> tuple[Client | None, BaseException | None]:
    """A client, or what was wrong. The library tries again by itself, but not after each error."""
    nc = Nats()
    connection = Connection(nc, prefix)
    told: Callable[[Exception], Awaitable[None]] | None = options.pop("error_cb", None)
    problems: list[Exception] = []
    login = asyncio.Event()

    async def on_error(error: Exception) -> None:
        if not nc.is_connected:
            problems[:] = [error]
            if _is_login(error):
                login.set()
        connection.note_error(error)
        if told is not None:
            await told(error)

    addresses = servers.split(",") if isinstance(servers, str) else list(servers)
    given: dict[str, Any] = {
        "name": "nowserving-python",
        # A half-open connection is noticed after two of these; the library's default is minutes.
        "ping_interval": 5,
        "max_outstanding_pings": 2,
        "connect_timeout": 5,
        "reconnect_time_wait": _PAUSE,
        "max_reconnect_attempts": -1,
        **options,
    }
    connecting = asyncio.ensure_future(nc.connect(addresses, error_cb=on_error, **given))
    refused = asyncio.ensure_future(login.wait())
    is_connected = False
    try:
        left = max(0.0, until - time.monotonic())
        await asyncio.wait({connecting, refused}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        problem = connecting.exception() if connecting.done() else None
        # A server that closes the connection before it answers the first ping looks connected to the library.
        is_connected = connecting.done() and problem is None and nc.is_connected
        if is_connected:
            return Client(connection, Feeds(connection), deadline, owned=True), None
        if connecting.done() and problem is None:
            problem = EOFError("the server has closed the connection")
        return None, next((error for error in problems if _is_login(error)), None) or problem or next(iter(problems), None)
    finally:
        refused.cancel()
        if not is_connected:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await connecting
            with contextlib.suppress(Exception):
                await _close(nc)


async def _close(nc: Nats) -> None:
    try:
        await nc.close()
    except asyncio.CancelledError:
        # What the library waits for was cancelled with the attempt. If this task was, it ends.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def _is_login(error: BaseException | None) -> bool:
    return isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower()


def _not_connected(problem: BaseException | None, deadline: float) -> NowservingError:
    if _is_login(problem):
        return login_refused("NATS")
    if problem is None or isinstance(problem, TimeoutError):
        return ConnectionFailed("unavailable", f"NATS: no connection within {deadline} s")
    return ConnectionFailed("unavailable", f"NATS: {problem or type(problem).__name__}")
