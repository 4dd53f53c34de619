"""Subjects, and the numbers of shards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .errors import BadArgument

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PREFIX = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


def name(what: str, text: str) -> str:
    """Checks the name of a line, a lane or a domain."""
    if not NAME.fullmatch(text):
        raise BadArgument("bad_request", f"{what}: must be [A-Za-z0-9_-]{{1,64}}")
    return text


def prefix(text: str) -> str:
    """Checks the first word or words of subjects."""
    if not PREFIX.fullmatch(text):
        raise BadArgument("bad_request", "prefix: must be words joined by dots, without spaces, * and >")
    return text


def _fnv1a_32(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def shard_of_line(line: str, shards: int) -> int:
    """The number of a line's shard in a cluster with so many shards."""
    return _fnv1a_32(line.encode()) % shards


def shard_of_check(domain: str, descriptor: Iterable[Mapping[str, str]], shards: int) -> int:
    """The shard that a check with this first descriptor goes to."""
    texts = [domain]
    for entry in descriptor:
        texts += [entry["key"], entry.get("value", "")]
    encoded = [text.encode() for text in texts]
    return _fnv1a_32(b"".join(len(text).to_bytes(2, "big") + text for text in encoded)) % shards
