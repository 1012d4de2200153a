"""Streams declared in `lakehouse.toml`: their gold for literal records, and refusals that name the key."""

from __future__ import annotations

import tomllib
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.engine.records.rules import checked_rules
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.declared import built
from lakehouse.streams.declared.keys import KINDS
from lakehouse.streams.declared.rules import RuleKeys, wrong_rules
from lakehouse.streams.definition import Stream
from lakehouse.streams.window_lengths import Calendar, Seconds
from lakehouse.testing import Case, declared
from lakehouse.testing.folding import Folding

NOON_S = 1_772_366_400  # 2026-03-01T12:00:00Z
NOON = "2026-03-01T12:00:00Z"
PAYMENTS = """
kind = "windowed_sums"
topic = "card-payments"
by = "card.id"
value = "amount"
length = "5m"
"""


def one(toml: str) -> Stream:
    """Return the stream called `one` with these keys."""
    return built("one", tomllib.loads(toml))


def refused(toml: str) -> str:
    """Return the message that refuses the keys of a stream called `one`."""
    with pytest.raises(SettingsError) as found:
        one(toml)
    return str(found.value)


STOCK = """
kind = "windowed_sums"
topic = "shop.public.deliveries"
envelope = "debezium"
unique_by = "id"
by = ["product", { name = "shopId", accepts_numbers = true }]
value = "pieces"
fields = [{ name = "note", required = false }]
length = "1d"
"""


def test_an_envelope_gives_each_field_its_path_and_a_row_is_corrected_and_deleted() -> None:
    (source,) = one(STOCK).sources

    assert {field.name: field.column for field in source.contract.fields} == {
        "after.product": "product",
        "after.shopId": "shop_id",
        "after.pieces": "pieces",
        "after.note": "note",
        "after.id": "after_id",
        "source.lsn": "source_lsn",
    }
    assert (source.unique_by, source.sequence_by) == ("after.id", "source.lsn")
    assert (source.deletion_key, source.deleted_if) == ("json:id", "op=d")
    assert source.contract.event_time == "source.ts_ms"
    (other,) = one(STOCK + 'sequence_by = "source.pos"\ndeleted_if = "op=x"').sources
    assert (other.sequence_by, other.deleted_if) == ("source.pos", "op=x")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            STOCK.replace('unique_by = "id"', ""),
            'streams.one: envelope = "debezium" needs unique_by, the column with the primary key',
        ),
        (STOCK.replace("debezium", "maxwell"), "streams.one.envelope = 'maxwell': expected 'debezium'"),
    ],
)
def test_an_envelope_without_a_primary_key_or_of_another_tool_is_refused(keys: str, message: str) -> None:
    assert refused(keys) == message


def test_a_key_that_a_table_selects_is_no_field_of_the_row() -> None:
    stream = one("""
        kind = "sql"
        topic = "shop.public.deliveries"
        envelope = "debezium"
        unique_by = "id"
        fields = [{ name = "pieces", type = "long" }]
        tables = [
            { by = "product", aggregates = { count = "count(*)" } },
            { by = "size", select = { size = "pieces > 9" }, aggregates = { count = "count(*)" } },
        ]
    """)

    names = {field.name for field in stream.sources[0].contract.fields}
    assert names == {"after.pieces", "after.product", "after.id", "source.lsn"}


def test_sums_are_those_of_its_keys(case: Case) -> None:
    stream = one("""
        kind = "windowed_sums"
        topic = "card-payments"
        table = "payments"
        event_time = "paidAt"
        event_time_unit = "s"
        by = [{ name = "card.id", column = "card", accepts_numbers = true }, "shop"]
        value = { name = "amount", scale = 2 }
        length = "5m"
        signed = true
        gold_table = "spending"
        to = "prod.spending"
        group = "cards"
        comment = "What is spent."
        fields = ["note", { name = "ok", type = "boolean", required = false }]
        unique_by = "id"
        allowed_lateness = "1d"
        start = "latest"
        """)
    (source,) = stream.sources
    assert (source.table, source.allowed_lateness_s, source.start) == ("payments", 86_400, "latest")
    assert [(field.name, field.column, field.type.value) for field in source.contract.fields] == [
        ("card.id", "card", "string"),
        ("shop", "shop", "string"),
        ("amount", "amount", "decimal"),
        ("note", "note", "string"),
        ("ok", "ok", "boolean"),
        ("id", "id", "string"),
    ]
    paid = {"card": {"id": 7}, "shop": "a", "note": "n", "paidAt": NOON_S}
    case(
        stream,
        [
            paid | {"id": "1", "amount": 1.005},
            paid | {"id": "2", "amount": -3},
            paid | {"id": "2", "amount": 9},
        ],
        now=NOON,
        gold=[{"card": "7", "shop": "a", "total_amount": Decimal("-1.99"), "count": 2}],
        sent=[{"key": "7:a", "value": {"card": "7", "totalAmount": Decimal("-1.99")}}],
        dead=[{"record": 2, "rule": "conflicting_id"}],
    )


def test_statistics_are_those_of_its_windows(case: Case) -> None:
    stream = one("""
        kind = "windowed_statistics"
        topic = "meter-readings"
        event_time = "read.at"
        event_time_zone = "Europe/Berlin"
        value = { name = "kWh", column = "kwh" }
        grace = "90s"
        idle_after = "10m"
        quantile_k = 400
        [[windows]]
        by = "meter"
        length = "1h"
        to = false
        merge_every = "10s"
        [[windows]]
        by = ['site\\.name', "tariff"]
        length = "1d"
        absent = { tariff = "base" }
        series = "{site_name}/{tariff}"
        """)
    assert [(table.name, table.export.topic, table.merge_every_s) for table in stream.gold] == [
        ("one_1h", None, 10),
        ("one_1d", "one-1d", 0),
    ]
    assert stream.gold[0].pinned_settings == {"streams.one.quantile_k": "400"}
    read = {"meter": "m", "site.name": "s", "read": {"at": "2026-03-01T13:00:00"}}
    case(
        stream,
        [read | {"kWh": 1.5}, read | {"kWh": 2.5, "tariff": "night"}],
        now=NOON,
        gold={
            "one_1h": [{"meter": "m", "sum": 4.0, "count": 2}],
            "one_1d": [
                {"site_name": "s", "tariff": "base", "avg": 1.5},
                {"site_name": "s", "tariff": "night", "avg": 2.5},
            ],
        },
        sent={"one-1d": [{"key": "s/base"}, {"key": "s/night"}]},
    )


def test_windows_are_days_weeks_or_months_of_its_zone() -> None:
    sums = one(PAYMENTS.replace("5m", "week") + "zone = 'Asia/Kolkata'")
    assert [(table.name, table.window) for table in sums.gold] == [
        ("one_week", Calendar("week", "Asia/Kolkata"))
    ]
    statistics = one("""
        kind = "windowed_statistics"
        topic = "meter-readings"
        value = "kWh"
        windows = [
          { by = "meter", length = "day", zone = "Europe/Berlin" },
          { by = "meter", length = "month" },
          { by = "meter", length = "7d" },
        ]
        """)
    assert [(table.name, table.window) for table in statistics.gold] == [
        ("one_day", Calendar("day", "Europe/Berlin")),
        ("one_month", Calendar("month", "UTC")),
        ("one_7d", Seconds(7 * 86_400)),
    ]


def test_totals_reach_the_threshold_of_its_keys(case: Case) -> None:
    stream = one("""
        kind = "running_totals"
        topic = "stock-moves"
        by = "sku"
        value = "pieces"
        threshold = 10.5
        notify = "every_update"
        notifications = "full"
        gold_table = "stock"
        to = "full-shelves"
        """)
    moved = {"sku": "nut", "timestamp": NOON_S * 1000}
    case(
        stream,
        [moved | {"pieces": 6}, moved | {"pieces": 4.5}, moved | {"pieces": 1}],
        now=NOON,
        gold={
            "stock": [{"sku": "nut", "total": Decimal("11.5"), "count": 3}],
            "full": [{"sku": "nut", "value": Decimal("10.5")}, {"sku": "nut", "value": Decimal("11.5")}],
        },
    )
    pinned = {"streams.one.threshold": "10.5", "streams.one.notify": "every_update"}
    assert stream.gold[0].pinned_settings == pinned


def test_calls_are_joined_from_its_sides(case: Case) -> None:
    stream = one("""
        kind = "joined_calls"
        pair = ["visitor", "host"]
        gap = "90s"
        grace = "0s"
        sides = [
          { topic = "door-in", payload = "badge" },
          { topic = "door-out", payload = "left", event_time = "at", event_time_unit = "s", table = "exits" },
        ]
        """)
    pair = {"visitor": "v", "host": "h"}
    case(
        stream,
        {
            "door-in": [pair | {"badge": 1, "timestamp": NOON_S * 1000}],
            "door-out": [pair | {"left": "x", "at": NOON_S + 90}],
        },
        now=NOON,
        later="2026-03-01T13:00:00Z",
        gold=[{"visitor": "v", "badge": "1", "left": "x", "status": "closed", "badge_events": 1}],
    )
    assert [source.table for source in stream.sources] == ["one_badge", "exits"]
    assert stream.gold[0].pinned_settings == {"streams.one.gap": "1m30s", "streams.one.grace": "0s"}


def test_what_breaks_a_rule_is_a_dead_letter_with_the_value_in_its_message(case: Case) -> None:
    stream = one(
        PAYMENTS
        + """
        fields = [{ name = "fee", type = "decimal", required = false }]
        rules = [
          { name = "odd_fee", column = "fee", fails_when = "fee > amount", message = "fee {fee}/{amount}" },
          { name = "test", column = "card_id", fails_when = "card_id LIKE 'now()%'", message = "a test" },
        ]
        """
    )
    paid = {"card": {"id": "c"}, "amount": 2, "timestamp": NOON_S * 1000}
    case(
        stream,
        [
            paid,
            paid | {"fee": 2.5},
            paid | {"card": {"id": "now()"}, "fee": 1},
            paid | {"amount": 0, "fee": 1},
        ],
        now=NOON,
        gold=[{"card_id": "c", "total_amount": Decimal(2), "count": 1}],
        dead=[
            {"record": 1, "rule": "odd_fee", "column": "fee", "message": "fee 2.5/2"},
            {"record": 2, "rule": "test", "column": "card_id", "message": "a test"},
            {"record": 3, "rule": "not_positive", "column": "amount"},
            {"record": 3, "rule": "odd_fee", "message": "fee 1/0"},
        ],
    )


def ruled(condition: str) -> str:
    rule = f"{{ name = 'r', column = 'amount', fails_when = \"\"\"{condition}\"\"\", message = 'm' }}"
    return f"{PAYMENTS}\nfields = ['user']\nrules = [{rule}]"


@pytest.mark.parametrize(
    "condition",
    [
        "now() > event_time",
        "current_date > DATE'2026-01-01'",
        "CURRENT_TIMESTAMP > event_time",
        "rand () > 0.5",
        "uuid() = card_id",
        "current_user() = user",
        "session_user = user",
        "row_number() OVER (ORDER BY amount) > 1",
        "amount > (SELECT 1)",
        "raise_error('x') IS NULL",
        "event_time >= 'tomorrow'",
        "CAST(' Today ' AS DATE) > DATE'2026-01-01'",
        "event_time >= TIMESTAMP'today Europe/Berlin'",
        "base64(aes_encrypt(card_id, '0000000000000000')) = user",
    ],
)
def test_what_is_no_rule_of_a_row_is_refused_without_spark(condition: str) -> None:
    assert refused(ruled(condition)).startswith("streams.one.rules[0].fails_when: ")


def test_a_column_may_be_named_like_a_time() -> None:
    rule = RuleKeys(name="r", column="today", fails_when="`today` < 0 OR 'today is fine' = ''", message="m")
    assert list(wrong_rules("streams.one", [rule], ["today"])) == []


@pytest.mark.parametrize(
    "condition",
    [
        "amout < 0",
        "nosuch(amount)",
        "amount <",
        "amount",
        "sum(amount) > 1",
        "explode(array(true))",
        "card_id IN (FROM range(3) |> LIMIT 1)",
        "input_file_name() = ''",
        "monotonically_increasing_id() > 1",
        "java_method('java.lang.System', 'nanoTime') = card_id",
        "amount > 0; DROP TABLE x",
    ],
)
def test_what_is_no_rule_of_a_row_is_refused_when_a_run_starts(case: Case, condition: str) -> None:
    stream = one(ruled(condition))
    with pytest.raises(SettingsError, match=r"^streams\.one\.rules\[0\]\.fails_when"):
        checked_rules(stream.sources[0])
    with pytest.raises(SettingsError, match=r"^streams\.one\.rules\[0\]\.fails_when"):
        case(stream, [{"card": {"id": "c"}, "amount": 1, "user": "u"}], gold=[])


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ("event_time_zone = 'Factory'", "the event_time_zone of topic card-payments"),
        ("length = 'week'\nzone = 'Factory'", "the zone of gold.one_week"),
    ],
)
def test_a_time_zone_that_java_does_not_know_is_refused_when_a_run_starts(
    spark: SparkSession, lake: Lake, lake_settings: Settings, keys: str, where: str
) -> None:
    kept = PAYMENTS if keys.startswith("event") else PAYMENTS.replace('length = "5m"', "")
    stream = one(f"{kept}\n{keys}")
    said = f"stream one: {where} is Factory, which Java's time zone database does not contain: "
    with pytest.raises(SettingsError, match=f"^{said}"):
        run(lake, [stream], ["silver", "gold"], lake_settings, RunOptions(AVAILABLE_NOW))
    with pytest.raises(SettingsError, match=f"^{said}"):
        Folding(spark, stream)


@pytest.mark.parametrize(
    "condition",
    ["user = 'now()'", "amount < 0 -- rand()", "exists(array(amount), x -> x > 3)", '"uuid()" = user'],
)
def test_words_in_text_and_columns_of_the_row_are_no_functions(case: Case, condition: str) -> None:
    stream = one(ruled(condition))
    case(
        stream,
        [{"card": {"id": "c"}, "amount": 1, "user": "u", "timestamp": NOON_S * 1000}],
        now=NOON,
        dead=[],
    )


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            PAYMENTS.replace("length", "lenght"),
            "streams.one.length is missing; streams.one.lenght: no key 'lenght': did you mean length?",
        ),
        ("kind = 'windowed_sum'", "streams.one.kind: no kind 'windowed_sum': did you mean windowed_sums?"),
        (
            "topic = 'a'",
            (
                "streams.one: your own stream needs kind (windowed_sums, windowed_statistics, "
                "running_totals, joined_calls, sql) or python"
            ),
        ),
        (
            "kind = 'windowed_sums'\npython = 'a:B'",
            "streams.one: kind and python are mutually exclusive; remove one of them",
        ),
        (PAYMENTS + "to = true", "streams.one.to = True: expected a string"),
        (PAYMENTS + "signed = 'no'", "streams.one.signed = 'no': expected a boolean"),
        (
            PAYMENTS + "format = 'xml'",
            "streams.one.format = 'xml': expected 'json', 'avro', 'json-schema' or 'protobuf'",
        ),
        (
            PAYMENTS + "event_time_zone = 'Berlin'",
            "streams.one.event_time_zone = 'Berlin': expected an IANA time zone, such as Europe/Berlin",
        ),
        (
            PAYMENTS.replace("5m", "1 week"),
            (
                "streams.one.length = '1 week': expected a duration, such as 90s, 15m, 1h30m or 7d; "
                "or day, week or month"
            ),
        ),
        (
            PAYMENTS.replace("5m", "0s"),
            "streams.one.length = '0s': a window cannot be 0s long: expected at least 1s",
        ),
        (
            PAYMENTS.replace("5m", "36526d"),
            "streams.one.length = '36526d': expected a window of at most a century",
        ),
        (
            PAYMENTS.replace("5m", "day") + "zone = 'Berlin'",
            "streams.one.zone = 'Berlin': expected an IANA time zone, such as Europe/Berlin",
        ),
        (
            PAYMENTS.replace("5m", "1d") + "zone = 'Europe/Berlin'",
            (
                "streams.one.zone = 'Europe/Berlin': a zone applies only to the lengths day, week and month; "
                "windows of 1d are counted from the epoch. Remove the zone, or set length to one of these"
            ),
        ),
        (
            (
                "kind = 'windowed_statistics'\ntopic = 't'\nvalue = 'v'\n"
                "windows = [{ by = 'a', length = '1h', zone = 'UTC' }]"
            ),
            (
                "streams.one.windows[0].zone = 'UTC': a zone applies only to the lengths day, week and "
                "month; windows of 1h are counted from the epoch. Remove the zone, or set length to one of "
                "these"
            ),
        ),
        (
            PAYMENTS.replace('"card.id"', '{ name = "a", typ = "long" }'),
            "streams.one.by[0].typ: no key 'typ': did you mean type?",
        ),
        (
            PAYMENTS + "gold.one_1m.emit = 'final'",
            "streams.one.gold.one_1m: no gold table 'one_1m': did you mean one_5m?",
        ),
        (
            PAYMENTS + "gold.one_5m.emit = 'final'",
            "streams.one.gold.one_5m.emit: its rows never become final, so none would be sent",
        ),
        (
            PAYMENTS + "rules = [{ name = 'r', column = 'a', fails_when = 'true', message = '{amont}' }]",
            (
                "streams.one.rules[0].column: no column 'a': amount, card_id or event_time; "
                "streams.one.rules[0].message: no column 'amont': did you mean amount?"
            ),
        ),
        (
            PAYMENTS + "sequence_by = 'version'",
            "streams.one: source one: sequence_by orders the records with the same id; set unique_by too",
        ),
        (
            PAYMENTS + "fields = [{ name = 'a', scale = 2 }]",
            "streams.one: field a: scale is 2; expected 0 to 9, with type decimal",
        ),
    ],
)
def test_wrong_keys_are_refused_by_their_full_name(toml: str, message: str) -> None:
    assert refused(toml) == message


def test_all_wrong_keys_of_a_stream_are_named_at_once() -> None:
    message = refused(
        "kind = 'running_totals'\ntopic = 'a b'\nthreshold = 0\nvalue = 1\nstart = 'soon'\nbi = 'x'"
    )
    assert [
        part.split(" ")[0].rstrip(":") for part in message.split("; ") if part.startswith("streams.")
    ] == [
        "streams.one.topic",
        "streams.one.start",
        "streams.one.by",
        "streams.one.value",
        "streams.one.threshold",
        "streams.one.bi",
    ]


def test_a_file_declares_its_streams_by_name() -> None:
    streams = declared(f"[redis]\nttl = '1d'\n[streams.payments]{PAYMENTS}[streams.sales]\nthreshold = 3")
    assert list(streams) == ["payments"]
    assert streams["payments"].gold[0].name == "payments_5m"


VALUES: tuple[object, ...] = (
    *(
        None,
        0,
        -1,
        3.5,
        True,
        float("nan"),
        10**40,
        "",
        "x",
        "a..b",
        "5m",
        "final",
        "header:",
        "op=d",
        "{",
        "\u202e",
    ),
    *([], {}, ["a", "b"], [[]], [1], {"name": "a", "scale": 99}, {"a": {}}, [{"by": "a", "length": "1m"}]),
)
WHOLE: dict[str, dict[str, object]] = {
    "windowed_sums": {"topic": "t", "by": "a", "value": "v", "length": "5m"},
    "windowed_statistics": {"topic": "t", "value": "v", "windows": [{"by": "a", "length": "1m"}]},
    "running_totals": {"topic": "t", "by": "a", "value": "v", "threshold": 3},
    "joined_calls": {
        "sides": [{"topic": "t1", "payload": "p"}, {"topic": "t2", "payload": "q"}],
        "pair": ["a", "b"],
    },
}


@pytest.mark.parametrize("kind", WHOLE)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(kind: str) -> None:
    taken, said = 0, list[str]()
    for key in KINDS[kind].model_fields.keys() - {"kind"}:
        for value in VALUES:
            try:
                built("one", {"kind": kind, **WHOLE[kind], key: value})
                taken += 1
            except SettingsError as error:
                said.append(str(error))
    assert taken > 20
    assert [one for one in said if not one.startswith("streams.one") or "\n" in one] == []
