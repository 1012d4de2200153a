"""The page's table of streams and the view of one stream, in a real, headless Chromium.

Most tests replace the status in the browser, so that streams are as bad and as many as a test needs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.ops_tables.history import HISTORY, Sample
from lakehouse.operations.quality.results import GATES
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import MergedTable
from tests.support.browser import Page, hold_answers
from tests.support.page_status import NAMES, run, seen, show
from tests.support.served_lakes import NOON_MS, ServedLake, at, event, product
from tests.support.serving import serving
from tests.support.streams import STREAMS

pytestmark = pytest.mark.soak
TABLES: dict[str, MergedTable] = {table.name: table for stream in STREAMS for table in stream.tables}
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
CELLS = """[...document.querySelectorAll('.streams tbody tr')].map((row) =>
    [...row.cells].map((one) => one.innerText.replace(/\\s+/g, ' ').trim()))"""
REASONS = """[...document.querySelectorAll('.reasons li')].map((one) =>
    one.innerText.replace(/\\s+/g, ' ').trim())"""
PLACES = """JSON.stringify([...document.querySelectorAll('.streams th')].map((one) =>
    one.getBoundingClientRect()))"""
DISPLAYS = "[...document.querySelectorAll('.streams tbody tr')].map((one) => getComputedStyle(one).display)"
ADD_A_RUN = """(() => {
    const ask = window.fetch;
    const at = '2026-05-04T12:00:00Z';
    const last = {at, rowsPerS: 1, error: null, restarts: 0};
    const queries = [
        {...last, name: 'bronze.sales_events', batch: 3, rows: 1005, phasesS: {read: 2, write: 0.5}},
        {...last, name: 'silver.sales_events', batch: 2, rows: 7, phasesS: {judge: 0.3}},
        {...last, name: 'gold.product_sales', batch: null, rows: null, phasesS: {}},
    ];
    const layers = ['bronze', 'silver', 'gold'];
    const run = {host: 'here', pid: 7, layers, streams: ['sales'], beatAt: at, queries};
    window.fetch = async (path, options) => {
        const answer = await ask(path, options);
        if (path !== '/api/v1/status') return answer;
        const status = await answer.json();
        status.streams.find((one) => one.name === 'sales').runs = [run];
        return new Response(JSON.stringify(status));
    };
})()"""
"""Adds a process to the status of the stream sales."""


def test_twelve_streams_fit_as_a_table_and_on_a_phone_they_are_a_list(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    words = ("stopped", "stalled", "blocked", "unknown", "refusing", "behind", "stale", "empty", "idle")
    streams = [seen(f"stream-of-{word}", word, 123_456) for word in words]
    streams += [seen(f"stream-of-well-{number}", "well", 13_500) for number in range(3)]
    with serving(lake, tmp_path / "log") as (_, url):
        page.resize(1300, 900)
        page.go(f"{url}/")
        show(page, streams)
        assert page.run("document.querySelector('.streams').getBoundingClientRect().bottom <= innerHeight")
        assert page.text(".headline") == "1 of 3 streams is stopped; no record waits."
        assert page.run(CELLS)[0] == [
            *("stream-of-stopped", "stopped", "–", "–", "1 min", "2 min", "3 min", "4 min"),
            *("123K 13 min", "12,345", "1 min", "–", "–", "–"),
        ]
        assert page.run("document.querySelector('.streams caption').textContent") == "Streams, worst first"
        assert page.run("document.querySelectorAll('.streams tbody th[scope=row]').length") == 12
        assert page.run(REASONS) == [
            f"{word} stream-of-{word} stream-of-{word} is {word} for a reason" for word in words
        ]
        label = "getComputedStyle(document.querySelector('.streams td.number'), '::before').content"
        for width, display in ((1300, "table-row"), (700, "table-row"), (390, "grid")):
            page.resize(width, 900)
            page.wait(f"innerWidth === {width}")
            assert set(page.run(DISPLAYS)) == {display}
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), width
            assert page.run("document.querySelectorAll('.table.cut').length") == 0, width
            assert (page.run(label) == "none") is (display == "table-row")


def test_every_trouble_of_a_stream_is_shown_and_nothing_moves_unless_the_order_changes(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    gate = {"isOpen": False, "changedAt": "2026-05-04T11:00:00Z", "reasons": ["totals differ"]}
    store = {
        "name": "redis",
        "word": "full",
        "reason": "no room",
        "since": None,
        "lacksRows": True,
        "todo": "Make `room`",
    }
    export = {"name": "export.a", "layer": "export", "done": 3, "doneAt": None, "stores": [store]}
    unknown = {"layer": "gold", "records": None, "seconds": None}
    part = {"layer": "bronze", "records": 5, "seconds": None}
    a = seen("a", "stopped", 13_500, gate=gate)
    b = seen("b", "behind", runs=[], queries=[export], backlogs=[part, unknown], waiting=part)
    failing = run({"name": "gold.of_c", "error": HOSTILE})
    c = seen("c", "well", runs=[failing], openLetters=None, waiting=None)
    with serving(lake, tmp_path / "log") as (_, url):
        page.resize(1300, 900)
        page.go(f"{url}/")
        show(page, [a, b, c])
        rows = page.run(CELLS)
        assert [row[1] for row in rows] == ["stopped", "behind", "well failing"]
        assert rows[1][4:9] == ["–", "–", "–", "▲ redis full", "≥ 5 ?"]
        assert rows[2][8:10] == ["?", "?"]
        assert page.run(REASONS) == [
            "stopped a a is stopped for a reason. Look it up.",
            "gate closed a totals differ since 2026-05-04 11:00:00 UTC",
            "behind b b is behind for a reason. Look it up.",
            "full b redis: no room. Make room.",
            "not run b no running process",
            f"failing c gold.of_c: {HOSTILE}",
        ]
        assert page.run("document.querySelectorAll('img').length") == 0

        page.wait("document.querySelector('.alerts')?.innerText.includes('unknown')")
        before = page.run(PLACES)
        show(page, [seen("a", "stopped", 123_456_789, gate=gate), b, c])
        page.wait("document.querySelector('.streams tbody').innerText.includes('123M')")
        assert page.run(PLACES) == before

        page.run("document.querySelector('[data-stream=b] a').focus()")
        show(page, [seen("b", "stopped"), a, c])
        assert page.run("document.activeElement.innerText") == "b"


def test_streams_with_the_same_reason_share_a_line_and_say_nothing_twice(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/")
        page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
        page.wait("document.querySelector('.notice')?.innerText.includes('there is no lake at')")
        assert page.run("document.body.innerText.split('there is no lake at').length - 1") == 1
        names = ", ".join(page.run(NAMES).split(","))
        assert page.run(REASONS)[0] == f"unknown {names} see above"
        assert page.text(".headline") == ("4 of 4 streams are unknown; the backlog of 4 streams is unknown.")


def test_a_stream_has_an_address_of_its_own(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write(TABLES["product_sales"], [product("tea", "12.5")])
    gate = {"stream": "sales", "changed_at": at(NOON_MS), "is_open": False, "reasons": ["totals differ"]}
    lake.write_spec(GATES, [gate])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/")
        page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
        page.run("document.querySelector('[data-stream=sales] a').focus()")
        page.press("Enter")
        page.wait("document.querySelector('.pipeline text.line')")
        assert page.run("[location.hash, document.title]") == ["#/streams/sales", "sales · lakehouse"]
        assert page.run("document.querySelector('nav [aria-current=page]').innerText") == "Overview"
        links = page.run("[...document.querySelectorAll('.facts a')].map((one) => one.getAttribute('href'))")
        assert links == ["#/letters?stream=sales", "#/log?stream=sales", "#/gold/product_sales"]
        assert "gate closed since 2026-05-04 12:00:00 UTC: totals differ" in page.text(".facts")
        steps = "[...document.querySelectorAll('.steps tbody tr')].map((one) => one.cells[0].innerText)"
        assert page.run(steps) == [
            *("bronze", "silver.sales_events", "gold.product_sales"),
            *("export.product_sales", "export.sales_notifications"),
        ]
        page.wait("document.querySelector('.settings tbody')")
        cells = "[...one.cells].map((cell) => cell.innerText)"
        rows = page.run(f"[...document.querySelectorAll('.settings tr')].map((one) => {cells})")
        settings = {key: told for key, *told in rows}
        assert settings["streams.sales.threshold"] == ["2000", "default"]
        assert settings["redis.url"] == [lake.settings.redis.url.get_secret_value(), "LAKEHOUSE_REDIS_URL"]
        assert "streams.metrics.grace" not in settings
        titles = "[...document.querySelectorAll('.pipeline .title')].map((one) => one.textContent).slice(-2)"
        assert page.run(titles) == ["Kafka", "Redis"]
        page.run(ADD_A_RUN)
        page.wait("document.querySelector('.steps tbody td:nth-last-child(2)').innerText === '1,005'")
        rounds = "[...document.querySelectorAll('.steps tbody tr')].map((one) => [...one.cells].slice(-2))"
        told = page.run(f"{rounds}.map((cells) => cells.map((one) => one.innerText))")
        assert told == [["1,005", "2.5 s"], ["7", "0.3 s"], *[["–", "–"]] * 3]
        page.run("document.querySelector('.node.gold').focus()")
        page.press("Enter")
        page.wait("document.querySelector('dialog[open]')?.innerText.includes('Gold of sales')")
        page.press("Escape")
        page.wait("document.querySelector('dialog') === null")

        page.run("history.back()")
        page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
        page.run("history.forward()")
        page.wait("document.querySelector('.pipeline text.line')")
        page.go(f"{url}/page/uPlot.LICENSE")
        page.go(f"{url}/#/streams/sales")
        page.wait(
            "document.querySelector('h1')?.innerText === 'sales' && document.querySelector('.pipeline')"
        )
        page.go(f"{url}/#/streams/%3Cimg%20src%3Dx%3E")
        page.wait(
            "document.querySelector('main').innerText.includes('This server has no stream <img src=x>.')"
        )
        assert page.run("document.querySelectorAll('img, .pipeline').length") == 0


def test_a_late_answer_does_not_show_the_events_of_another_layer(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    append(
        lake.settings.lake,
        [
            replace(event(second, "failure", f"{layer} has failed", stream="sales"), layer=layer)
            for second, layer in enumerate(("bronze", "gold"))
        ],
    )
    told = "document.querySelector('dialog .message')?.innerText"
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/streams/sales")
        page.wait("document.querySelector('.pipeline text.line')")
        page.run(hold_answers("limit=200", first_only=True))
        page.run("document.querySelector('.node.bronze').focus()")
        page.press("Enter")
        page.wait("document.querySelector('dialog[open]')")
        page.press("Escape")
        page.wait("document.querySelector('dialog') === null")
        page.run("document.querySelector('.node.gold').focus()")
        page.press("Enter")
        page.wait(f"{told} === 'gold has failed'")
        page.run("deliver()")
        page.wait("isDelivered")
        assert page.run(told) == "gold has failed"


def test_times_are_in_utc_or_in_the_zone_of_the_reader(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    gate = {"stream": "sales", "changed_at": at(NOON_MS), "is_open": False, "reasons": ["totals differ"]}
    lake.write_spec(GATES, [gate])
    lake.write(TABLES["product_sales"], [product("tea", "12.5")])
    page.send("Emulation.setTimezoneOverride", timezoneId="America/St_Johns")
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/streams/sales")
        page.wait("document.querySelector('.facts')?.innerText.includes('2026-05-04 12:00:00 UTC')")
        page.click("#zone")
        page.wait("document.querySelector('.facts').innerText.includes('05-04 09:30:00 America/St_Johns')")
        page.go(f"{url}/page/uPlot.LICENSE")
        page.go(f"{url}/#/letters")
        page.wait("document.querySelector('main')?.innerText.includes('First seen (America/St_Johns)')")
        assert page.text("#zone") == "America/St_Johns"
        day = "document.querySelector('a[data-key=\"t:today\"]').getAttribute('href')"
        assert page.run(day).count("%3A30%3A00Z") == 2  # 02:30 in summer, 03:30 in winter
        page.click("#zone")
        page.wait("document.querySelector('main').innerText.includes('First seen (UTC)')")
        assert page.run(day).count("T00%3A00%3A00Z") == 2


def test_the_past_of_a_stream_is_a_sparkline_and_its_own_charts(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    slot = timedelta(minutes=5)
    last = EPOCH + (datetime.now(UTC) - EPOCH) // (2 * slot) * 2 * slot - timedelta(minutes=4)
    samples = [
        Sample(
            "sales", last - slot * ago, "behind" if ago > 3 else "well", 90_000 - 300 * ago, 60_000, 9.0, 4
        )
        for ago in range(8)
    ]
    lake.write_spec(HISTORY, [asdict(one) for one in samples])
    spark = "document.querySelector('[data-stream=sales] td.past:nth-last-child(%d) svg')"
    with serving(lake, tmp_path / "log") as (_, url):
        page.resize(1300, 900)
        page.go(f"{url}/")
        page.wait(spark % 1)
        label = "open dead letters in the last 24 hours: from 4 to 4, last 4"
        assert page.run(f"{spark % 1}.getAttribute('aria-label')") == label
        assert page.run(f"{spark % 2}.querySelector('title').textContent").startswith(
            "longest wait in the last"
        )
        assert page.run("document.querySelectorAll('.spark').length") == 3
        assert page.run("document.documentElement.scrollWidth <= innerWidth")

        page.go(f"{url}/#/streams/sales")
        page.wait("document.querySelectorAll('.charts canvas').length === 3")
        assert "behind 50 %, well 50 %" in page.text(".health")
        pieces = "[...document.querySelectorAll('.strip i')].map((one) => one.className)"
        recorded = [one for one in page.run(pieces) if one != "none"]
        assert recorded == ["behind", "behind", "well", "well"]
        page.run(
            "[...document.querySelectorAll('.buttons button')].find((one) => one.innerText == 'hour').click()"
        )
        page.wait("document.querySelectorAll('.strip i').length === 12")
        assert page.run("document.querySelectorAll('.strip .behind').length") == 4
        page.run("document.querySelector('details summary').click()")
        page.wait("document.querySelectorAll('details tbody tr').length === 8")

        page.go(f"{url}/#/streams/calls")
        page.wait("document.querySelector('main').innerText.includes('Nothing is recorded for this time.')")
