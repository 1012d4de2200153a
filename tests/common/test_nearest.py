"""The known names that a misspelt one may stand for."""

from __future__ import annotations

import pytest

from lakehouse.common.nearest import nearest, no_such

STREAMS = ("calls", "metrics", "sales", "transactions")
VARIABLES = (
    "LAKEHOUSE_KAFKA_BOOTSTRAP",
    "LAKEHOUSE_KAFKA_PASSWORD",
    "LAKEHOUSE_KAFKA_USER",
    "LAKEHOUSE_LAKE",
    "LAKEHOUSE_REDIS_URL",
    "LAKEHOUSE_TOPICS",
)


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("slaes", STREAMS, ["sales"]),
        ("SALES", STREAMS, ["sales"]),
        ("metric", STREAMS, ["metrics"]),
        ("serviceid", ("stream", "service_id", "limit"), ["service_id"]),
        ("service-id", ("stream", "service_id", "limit"), ["service_id"]),
        ("sale", ("gold.sales_by_product_per_month", "gold.metrics_1m"), ["gold.sales_by_product_per_month"]),
        ("nosuch", STREAMS, []),
        ("", STREAMS, []),
        ("sales", (), []),
        ("x" * 1_000_000, ("x" * 1_000_000 + "y", "sales"), ["x" * 1_000_000 + "y"]),
    ],
)
def test_names_that_resemble_a_name(name: str, known: tuple[str, ...], found: list[str]) -> None:
    assert nearest(name, known) == found


def test_no_more_names_than_asked_for_the_most_similar_first() -> None:
    assert nearest("LAKEHOUSE_KAFKA_PASWORD", VARIABLES)[0] == "LAKEHOUSE_KAFKA_PASSWORD"
    assert len(nearest("LAKEHOUSE_KAFKA", VARIABLES)) == 3
    assert nearest("LAKEHOUSE_KAFKA_USR", VARIABLES, most=1) == ["LAKEHOUSE_KAFKA_USER"]
    assert nearest("LAKEHOUSE_KAFKA_USR", VARIABLES, most=0) == []


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("slaes", STREAMS, "no stream 'slaes': did you mean sales?"),
        ("x", STREAMS, "no stream 'x': calls, metrics, sales or transactions"),
        ("x", (), "no stream 'x': there are none"),
        ("x", [f"stream {number}" for number in range(50)], "no stream 'x'"),
        ("\x1b[2J" + "y" * 100, ("sales",), r"no stream '\x1b[2J" + "y" * 60 + "…': sales"),
    ],
)
def test_the_sentence_that_refuses_a_name(name: str, known: tuple[str, ...], said: str) -> None:
    assert no_such("stream", name, known) == said
