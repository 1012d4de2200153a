"""HTTP/1.1 connections with deadlines. Clients that stop sending or reading are disconnected.

uvicorn limits only the pause between two requests. This module also limits the time in which a request's head
must arrive, measured from the connection or from the head's first byte. It also limits how long a
response waits for its client to read it, and the number of connections that wait for a request, in total and
per peer. Once that many connections are waiting, a new connection replaces the oldest of them.

All use of undocumented uvicorn internals is confined to this module (docs/internals.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakehouse.serving.security.limits import network_of
from lakehouse.serving.security.tls import LOOK_S

MOST_HEAD = 64 * 1024
HEAD_S = 10.0
STALLED_S = 30.0
MOST_WAITING = 512
MOST_WAITING_OF_A_PEER = 128


class Server(uvicorn.Server):
    """A uvicorn server that calls `end` before it stops and, if `look` is given, calls `look` every 30 s."""

    def __init__(
        self, config: uvicorn.Config, end: Callable[[], None], look: Callable[[], Awaitable[None]] | None
    ) -> None:
        config.callback_notify, config.timeout_notify = look, LOOK_S
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on a signal. First, end the responses that would otherwise never end."""
        self._end()
        super().handle_exit(sig, frame)


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with deadlines after which a connection is aborted."""

    head_s = HEAD_S
    stalled_s = STALLED_S
    most_waiting = MOST_WAITING
    most_waiting_of_a_peer = MOST_WAITING_OF_A_PEER

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._head: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.peer = ""
        self.made_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is waiting for a request, or for the rest of an incomplete request."""
        waits = self._head is not None or self.timeout_keep_alive_task is not None
        return waits and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.peer, self.made_at = network_of((self.client or ("",))[0]), self.loop.time()
        self._make_room()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. They do not extend the deadline for an unfinished head."""
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        """Start the deadline by which the client must read buffered data."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Cancel the deadline by which the client must read buffered data."""
        _cancel(self._stalled)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all deadlines."""
        _cancel(self._head)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """If this peer or all peers together have too many waiting connections, abort the oldest of them."""
        waiting = [one for one in self.connections if isinstance(one, DeadlineProtocol) and one.is_waiting]
        of_peer = [one for one in waiting if one.peer == self.peer]
        if len(of_peer) >= self.most_waiting_of_a_peer:
            _oldest(of_peer).transport.abort()
        elif len(waiting) >= self.most_waiting:
            _oldest(waiting).transport.abort()

    def _watch_head(self) -> None:
        """Start or cancel the deadline for the head of a request.

        The deadline also applies to a request body that is still arriving after the response was sent.
        """
        theirs, ours = self.conn.their_state, self.conn.our_state
        if theirs is not h11.IDLE and not (theirs is h11.SEND_BODY and ours is h11.DONE):
            _cancel(self._head)
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.head_s, self.transport.abort)

    def _watch_reader(self, before: int | None = None) -> None:
        """Abort the connection if its client has read nothing since the previous check."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        else:
            self._stalled = self.loop.call_later(self.stalled_s, self._watch_reader, left)


def _oldest(waiting: list[DeadlineProtocol]) -> DeadlineProtocol:
    return min(waiting, key=lambda one: one.made_at)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
