"""A server that refuses the login, and closes the connection before the client has read why."""

import asyncio

import pytest

from nowserving import Client, Forbidden

INFO = b'INFO {"server_id": "a", "version": "2.10.0", "max_payload": 1048576, "auth_required": true}\r\n'


def test_a_refused_login_is_told_though_the_first_answer_is_lost() -> None:
    asyncio.run(_refused())


async def _refused() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(INFO)
        await reader.readline()
        if connections > 1:
            writer.write(b"-ERR 'Authorization Violation'\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Forbidden):
            await Client.connect(f"nats://u:p@127.0.0.1:{port}", deadline=10)
    assert connections > 1
