"""The telemetry server facing hostile peers over real sockets: nobody needs a token to reach it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import repeat

import pytest
from prometheus_client import CollectorRegistry, Gauge

from lakehouse.operations.telemetry.server import Limits, Readiness, serving

PATIENT = Limits(head_s=600, stalled_s=600)
HASTY = Limits(head_s=0.2, stalled_s=0.2)
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n"
HALF = GET % b"/metrics"


def registry_of(*, large: bool = False) -> CollectorRegistry:
    registry = CollectorRegistry()
    gauge = Gauge("lakehouse_test", "x" * (40_000_000 if large else 1), registry=registry)
    gauge.set(1)
    return registry


def connected(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(host, 0))


def asked(port: int, path: bytes = b"/health/live", host: str = "127.0.0.1") -> bytes:
    """Return the answer to a request on a connection of its own."""
    with connected(port, host) as client:
        client.sendall(GET % path + b"\r\n")
        return all_of(client)


def all_of(client: socket.socket) -> bytes:
    try:
        return b"".join(iter(partial(client.recv, 65_536), b""))
    except ConnectionResetError:
        return b""


def threads_of_connections() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "process_request_thread" in one.name]


def ready() -> Readiness:
    return Readiness(is_ready=True)


@pytest.mark.parametrize("first", [b"", HALF], ids=["no byte", "half a request"])
def test_sixty_half_requests_take_neither_sixty_threads_nor_the_place_of_a_whole_one(first: bytes) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(serving(registry_of(), ready, 0, limits=PATIENT))
        half = [stack.enter_context(connected(port)) for _ in range(60)]
        for client in half:
            with suppress(ConnectionError):
                client.sendall(first)
        assert asked(port).startswith(b"HTTP/1.0 200")
        assert asked(port, b"/metrics").startswith(b"HTTP/1.0 200")
        assert [all_of(client) for client in half[:44]] == [b""] * 44  # the oldest ones were cut
        while len(threads_of_connections()) > 16:  # those of cut connections are still ending
            time.sleep(0.01)


def test_many_peers_share_what_there_is_and_another_one_is_answered() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(serving(registry_of(), ready, 0, limits=PATIENT))
        peers = [f"127.0.1.{number}" for number in range(1, 9)]
        half = [stack.enter_context(connected(port, peer)) for peer in peers for _ in range(10)]
        assert asked(port).startswith(b"HTTP/1.0 200")
        assert [all_of(client) for client in half[:32]] == [b""] * 32
        assert len(threads_of_connections()) <= 48


@pytest.mark.parametrize(
    ("drops", "status"),
    [(iter(()), b"408"), (repeat(b"X"), b"408"), (repeat(b"X-Drop: 1\r\n" * 500), b"431")],
    ids=["silence", "drops", "endless headers"],
)
def test_a_request_has_a_deadline_as_a_whole_and_a_size(drops: Iterator[bytes], status: bytes) -> None:
    limits = PATIENT if status == b"431" else HASTY
    with serving(registry_of(), ready, 0, limits=limits) as port, connected(port) as client:
        client.sendall(HALF)
        cut = threading.Event()

        def drip() -> None:
            try:
                for drop in drops:
                    client.sendall(drop)
                    if cut.wait(0.01):
                        return
            except OSError:
                return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            said = client.recv(65_536)
        except ConnectionResetError:  # the server closed with bytes still unread
            said = b"HTTP/1.0 " + status
        finally:
            cut.set()
            dripping.join()
        assert said.startswith(b"HTTP/1.0 " + status)


def test_who_does_not_read_an_answer_is_cut() -> None:
    with serving(registry_of(large=True), ready, 0, limits=HASTY) as port, connected(port) as client:
        client.sendall(HALF + b"\r\n")
        client.recv(1)
        while threads_of_connections():
            pass
        assert len(all_of(client)) < 40_000_000
        assert asked(port).startswith(b"HTTP/1.0 200")


def test_answers_in_the_making_are_not_cut_and_further_ones_of_the_peer_are_refused() -> None:
    go_on, asking = threading.Event(), threading.Semaphore(0)

    def slowly() -> Readiness:
        asking.release()
        go_on.wait(60)
        return Readiness(is_ready=False, reasons=("it thinks",))

    with ExitStack() as stack:
        port = stack.enter_context(serving(registry_of(), slowly, 0))
        clients = [stack.enter_context(connected(port)) for _ in range(16)]
        for client in clients:
            client.sendall(GET % b"/health/ready" + b"\r\n")
            assert asking.acquire(timeout=60)
        assert asked(port) == b""
        assert asked(port, host="127.0.0.2").startswith(b"HTTP/1.0 200")
        go_on.set()
        assert [all_of(client)[:12] for client in clients] == [b"HTTP/1.0 503"] * 16


JUNK = (
    b"\x00\xff\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9.9\r\n\r\n",
    b"\r\n\r\n",
    b"PUT / HTTP/1.1\r\n\r\n",
    b"G",
)


def test_junk_is_answered_or_cut_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(registry_of(), ready, 0) as port:
        for request in JUNK:
            with connected(port) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                all_of(client)
        assert asked(port).startswith(b"HTTP/1.0 200")
    assert "Traceback" not in "".join(capfd.readouterr())
