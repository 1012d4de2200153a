"""The server answers every request, whether or not it conforms to the server's own OpenAPI."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import redis
import schemathesis
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error

from lakehouse.serving.app import make_app
from lakehouse.serving.child_commands import Actions
from lakehouse.serving.security.access import LOOPBACK_NAMES, Access
from lakehouse.settings import Settings
from tests.support.chance import chance
from tests.support.served_lakes import NOON_MS, PATIENCE_S, ServedLake, call, minute, product, transactions
from tests.support.streams import CALL_RECORDS, METRICS_1M, PRODUCT_SALES, STREAMS, USER_TRANSACTIONS_5M

OPERATIONS = 34  # roughly how many there are, to share the cases among
_LEFT_OUT = {
    "/api/v1/events",  # it never ends
    "/api/v1/alerts",  # it is 503 without a broker, and has no parameters to vary
}


@pytest.fixture(scope="module")
def schema(session_settings: Settings, redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the server's OpenAPI schema over a lake with a few rows."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
    changes = {"lake": str(tmp_path_factory.mktemp("fuzz")), "redis.url": SecretStr(redis_server)}
    lake = ServedLake(session_settings.changed(changes))
    for table, row in (
        (METRICS_1M, minute()),
        (PRODUCT_SALES, product("0", "1")),
        (CALL_RECORDS, call("0", "0", analytics="{}")),
        (USER_TRANSACTIONS_5M, transactions("0", NOON_MS, "1")),
    ):
        lake.write(table, [row])
        lake.export(table, [row])
    access = Access(None, LOOPBACK_NAMES | {"testserver"})
    echo = Actions(("/bin/echo",))  # no request runs a real command here
    app = make_app(lake.settings, STREAMS, access, actions=echo, redis_timeout_s=PATIENCE_S)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def ask(schema: Any, cases: int) -> int:
    """Make this many requests, print the seed, and return the number of operations covered."""
    seed = chance(cases).getrandbits(32)
    print(f"{cases:,} cases of seed {seed}")
    operations = [one.ok() for one in schema.get_all_operations()]
    asked = [one for one in operations if one.path not in _LEFT_OUT]
    for operation in asked:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=-(-cases // len(asked)),
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def has_an_answer(case: Any) -> None:
            case.call_and_validate(checks=[not_a_server_error])

        has_an_answer()
    return len(asked)


@pytest.mark.soak
@pytest.mark.cases
def test_two_thousand_requests_have_an_answer(schema: Any) -> None:
    assert ask(schema, 2_000) >= OPERATIONS


@pytest.mark.soak
@pytest.mark.cases
def test_fifty_thousand_requests_have_an_answer(schema: Any) -> None:
    assert ask(schema, 50_000) >= OPERATIONS
