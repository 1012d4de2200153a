"""A primary, a replica and Sentinels that watch them: real processes, with passwords and optional TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.sentinel import Sentinel

from tests.support import redis_servers
from tests.support.certificates import Certified
from tests.support.pipeline import await_
from tests.support.processes import unused_port

NAME, PASSWORD, SENTINELS_PASSWORD = "lakehouse-1", "of-the-servers", "of-the-sentinels"
_CONFIGURATION = f"""\
requirepass {SENTINELS_PASSWORD}
sentinel sentinel-pass {SENTINELS_PASSWORD}
sentinel monitor {NAME} 127.0.0.1 {{port}} {{quorum}}
sentinel auth-pass {NAME} {PASSWORD}
sentinel down-after-milliseconds {NAME} 500
sentinel failover-timeout {NAME} 3000
"""


@dataclass(frozen=True)
class Watched:
    """Two servers, the first of which is initially the primary, and the Sentinels' ports."""

    servers: dict[int, subprocess.Popen[bytes]]
    sentinels: tuple[int, ...]
    certificates: Certified | None

    @property
    def url(self) -> str:
        """The value of LAKEHOUSE_REDIS_URL."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        scheme = "redis" if self.certificates is None else "rediss"
        tls = "" if self.certificates is None else f"&ssl_ca_certs={self.certificates.authority}"
        place = f"{scheme}+sentinel://:{PASSWORD}@{hosts}/{NAME}/3"
        return f"{place}?sentinel_password={SENTINELS_PASSWORD}{tls}"

    def url_of(self, port: int) -> str:
        """Return the URL of one of the servers, in any role."""
        if self.certificates is None:
            return f"redis://:{PASSWORD}@127.0.0.1:{port}/3"
        return f"rediss://:{PASSWORD}@127.0.0.1:{port}/3?ssl_ca_certs={self.certificates.authority}"

    def asked(self) -> Sentinel:
        """Return a client of the Sentinels."""
        tls = (
            {}
            if self.certificates is None
            else {"ssl": True, "ssl_ca_certs": str(self.certificates.authority)}
        )
        hosts = [("127.0.0.1", port) for port in self.sentinels]
        options = {"password": SENTINELS_PASSWORD, **tls}
        return Sentinel(hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]

    def primary(self) -> int:
        """Return the port of the server that is the primary according to the Sentinels."""
        port: int = self.asked().discover_master(NAME)[1]  # type: ignore[no-untyped-call]
        return port


@contextmanager
def watched(directory: Path, *, sentinels: int, certificates: Certified | None = None) -> Iterator[Watched]:
    """Run servers and Sentinels until the end of the block, which begins once they all know each other."""
    with ExitStack() as running:

        def start(name: str, *options: str) -> tuple[int, subprocess.Popen[bytes]]:
            port = unused_port()
            at = (
                ("--port", str(port))
                if certificates is None
                else redis_servers.tls_options(certificates, port)
            )
            process = running.enter_context(redis_servers.process(directory / name, *options, *at))
            redis_servers.await_port(port, process)
            return port, process

        quiet = (*redis_servers.QUIET, "--repl-diskless-sync-delay", "0")
        access = ("--requirepass", PASSWORD, "--masterauth", PASSWORD, *quiet)
        replication = () if certificates is None else ("--tls-replication", "yes")
        first, primary = start("primary", *access, *replication)
        second, replica = start("replica", *access, *replication, "--replicaof", "127.0.0.1", str(first))
        watching = []
        for number in range(sentinels):
            file = directory / f"sentinel-{number}.conf"
            file.write_text(_CONFIGURATION.format(port=first, quorum=sentinels // 2 + 1))
            port, _ = start(file.stem, str(file), "--sentinel", *replication)
            watching.append(port)
        found = Watched({first: primary, second: replica}, tuple(watching), certificates)
        await_(lambda: _know_each_other(found) and _follows(found.url_of(second)), 60)
        yield found


def _follows(replica: str) -> bool:
    """Return whether a replica has its primary's data; Sentinels do not promote it before."""
    with Redis.from_url(replica) as client:
        state: dict[str, object] = client.info("replication")
        return state["master_link_status"] == "up"


def _know_each_other(found: Watched) -> bool:
    def others(sentinels: Sequence[object]) -> list[tuple[int, int]]:
        states = [one.sentinel_masters()[NAME] for one in sentinels]  # type: ignore[attr-defined]
        return [(int(one["num-other-sentinels"]), int(one["num-slaves"])) for one in states]

    return others(found.asked().sentinels) == [(len(found.sentinels) - 1, 1)] * len(found.sentinels)
