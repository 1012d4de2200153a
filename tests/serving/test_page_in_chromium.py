"""The live page in a real, headless Chromium, with the server in a process of its own.

The lakes are written without Spark; the replay in tests/integration uses real layers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.serving.security.tokens import Scope, Tokens
from lakehouse.streams.definition import MergedTable
from tests.support.browser import Page, hold_answers
from tests.support.served_lakes import (
    MINUTE_MS,
    NOON_MS,
    Row,
    ServedLake,
    at,
    call,
    event,
    letter,
    minute,
    product,
    transactions,
)
from tests.support.serving import serving
from tests.support.streams import STREAMS

AXE = Path(__file__).with_name("axe")
TABLES: dict[str, MergedTable] = {table.name: table for stream in STREAMS for table in stream.tables}
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
RED = "rgb(179, 38, 30)"
LETTER = f"#/letters/{1:064x}"
TEXTS_BEYOND_THEIR_PLACE = """import('/page/pipeline.js').then(({pipeline}) => {
    const wide = 'WIDE-'.repeat(20), at = '2026-05-04T12:00:00Z', number = 123456789;
    const drawn = pipeline('of-a-test', () => {});
    document.querySelector('main').append(drawn.node);
    const box = (one) => one.getBoundingClientRect();
    const all = (selector, node = drawn.node) => [...node.querySelectorAll(selector)];
    const backlogs = ['bronze', 'silver', 'gold', 'export'].map((layer) =>
        ({layer, records: number, seconds: number}));
    const beyond = ([word, mark]) => {
        drawn.update({
            name: wide, health: {word}, freshnessS: number, openLetters: number, gate: null, runs: [],
            partitions: [{topic: wide, end: 1, records: number, seconds: number}],
            layers: [], backlogs, waiting: backlogs[2],
            tables: ['bronze', 'silver', 'gold'].flatMap((layer) => [1, 2].map((one) =>
                ({name: `${layer}.${one}`, version: number, committedAt: at, rows: 1}))),
            eventTimes: [{watermark: at}],
            queries: backlogs.map(({layer}) => ({layer, doneAt: at, stores: []})),
        }, '2026-11-27T12:00:00Z');
        const nodes = all('.node').map((node) => [node, box(node.querySelector('rect'))]);
        const inNodes = nodes.flatMap(([node, {right}]) =>
            all('text', node).filter((one) => box(one).right > right));
        const onEdges = all('.edge text').filter((one) => one.textContent && nodes.some(
            ([, node]) => box(one).right > node.left && box(one).left < node.right &&
                box(one).bottom > node.top && box(one).top < node.bottom));
        const marks = all('.mark').map((one) => one.textContent).join('');
        const tips = drawn.node.querySelector('.topic title')?.textContent;
        return [...inNodes, ...onEdges].map((one) => one.textContent)
            .concat(tips === wide ? [] : ['no tooltip'], marks === mark ? [] : [`${word}: ${marks}`]);
    };
    const found = [['well', 'max wait'], ['behind', 'bottleneck']].flatMap(beyond);
    drawn.close();
    drawn.node.remove();
    return found;
})"""
NOTE_TEXTS_OF_CHARTS = """(() => {
    const {clearRect, fillText} = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...where) {
        this.canvas.texts = [];
        return clearRect.call(this, ...where);
    };
    CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        this.canvas.texts.push(text);
        return fillText.call(this, text, ...where);
    };
})()"""
COLOURS_OF_CHARTS = """[...document.querySelectorAll('.uplot')].map((one) => Object.fromEntries(
    [...one.querySelectorAll('.u-series')].slice(1).map((row) => [
        row.querySelector('.u-label').textContent,
        getComputedStyle(row.querySelector('.u-marker')).borderTopColor,
    ])))"""
NOTE_SHIFTS = """window.shifts = [];
    new PerformanceObserver((list) => list.getEntries().filter((one) => !one.hadRecentInput).forEach((one) =>
        window.shifts.push([one.value, ...one.sources.map(({node}) => node?.className || node?.nodeName)]))
    ).observe({type: 'layout-shift', buffered: true})"""
MOST_SHIFTED = 0.1  # what browsers' makers call good
VIEWS = {
    "overview": ("#/", ".streams tbody tr"),
    "stream": ("#/streams/sales", ".pipeline text.line"),
    "letters": ("#/letters?status=", "td .badge"),
    "letter": (LETTER, "pre.lines"),
    "series": ("#/gold/metrics_1m?service_id=auth&metric_name=cpu", ".uplot"),
    "services": ("#/gold/metrics_1m?metric_name=cpu", ".uplot"),
    "products": ("#/gold/product_sales", ".bars li"),
    "calls": ("#/gold/call_records", "tbody td"),
    "users": ("#/gold/user_transactions_5m", ".uplot"),
    "checks": ("#/checks", ".suites table"),
    "log": ("#/log", "section h2"),
    "api": ("docs", "pre"),
}


@pytest.fixture
def filled(lake: ServedLake) -> ServedLake:
    """Return a lake with something for every view."""
    for service in ("auth", "billing", HOSTILE):
        starts = (NOON_MS + number * MINUTE_MS for number in range(30))
        lake.write(
            TABLES["metrics_1m"],
            [
                minute(service, start_ms=start, avg=2.1 + n / 7, is_final=n < 25)
                for n, start in enumerate(starts)
            ],
        )
    lake.write(TABLES["product_sales"], [product("tea", "12345678901234567890.123456789", 3)])
    lake.write(TABLES["product_sales"], [product("cup", "1500.5"), product("pot", "2000")])
    lake.write(TABLES["sales_notifications"], [notification("pot", "2000")])
    calls = [call("ada", "bob", analytics='{"x": 1}', metrics="m"), call("eve", "bob", analytics="17")]
    lake.write(TABLES["call_records"], calls)
    windows = [transactions("ada", NOON_MS + number * 5 * MINUTE_MS, f"{number}.25") for number in range(9)]
    lake.write(TABLES["user_transactions_5m"], windows)
    letters = [letter(number, "late", HOSTILE, value=HOSTILE.encode()) for number in range(60)]
    lake.write_spec(DEAD_LETTERS, [*letters, letter(61, "not_json", status="replayed", stream="sales")])
    gate = {"stream": "sales", "changed_at": at(NOON_MS), "is_open": False, "reasons": ["totals differ"]}
    lake.write_spec(GATES, [gate])
    lake.write_spec(
        RESULTS, [result("keys are unique", success=True), result("avg is finite", success=False)]
    )
    return lake


def notification(name: str, value: str) -> Row:
    place = {"partition": 0, "offset": 7, "crossing": 1}
    return {"product": name, "value": Decimal(value), "event_time": at(NOON_MS), **place}


def result(expectation: str, *, success: bool) -> Row:
    found = {"run_id": "1", "checked_at": at(NOON_MS), "table": "gold.metrics_1m", "rows": 90, "version": 2}
    examples = "[]" if success else '[{"service_id": "auth"}]'
    bad = {"success": success, "unexpected": 0 if success else 1, "examples": examples}
    return found | bad | {"expectation": expectation, "severity": "error"}


def test_the_page_shows_gold_follows_it_and_complains_of_nothing(
    filled: ServedLake, page: Page, tmp_path: Path
) -> None:
    filled.write(TABLES["metrics_1m"], [minute("auth", "memory_mb", start_ms=NOON_MS + 29 * MINUTE_MS)])
    page.prefer("light")
    with serving(filled, tmp_path / "log") as (_, url):
        page.go(f"{url}/")
        page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
        page.wait("document.querySelector('.notice')?.innerText.includes('no Kafka broker at')")
        assert page.run("document.body.innerText.split('no Kafka broker at').length - 1") == 1
        stopped = "getComputedStyle(document.querySelector('[data-stream=metrics] .badge.stopped'))"
        assert page.run(f"{stopped}.color") == RED
        page.click(".streams th a", "metrics")
        page.wait("location.hash === '#/streams/metrics' && document.querySelector('.pipeline text.line')")
        for width in (1300, 1000, 390):
            page.resize(width, 1000)
            page.wait(f"innerWidth === {width} && document.querySelector('.pipeline text.line').textContent")
            assert page.run(TEXTS_BEYOND_THEIR_PLACE) == []
            assert page.run("document.documentElement.scrollWidth <= innerWidth")

        page.run(NOTE_TEXTS_OF_CHARTS)
        page.go(f"{url}/#/gold/metrics_1m?within=300")
        page.wait("document.querySelectorAll('.uplot').length === 2")
        titles = page.run("[...document.querySelectorAll('figcaption')].map((one) => one.innerText)")
        assert [title.split(":")[0] for title in titles] == ["cpu", "memory_mb"]
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert "More columns" in page.text(".rows .hint")
        page.run("document.querySelector('.rows .scrolls').scrollTo(10_000, 0)")
        page.wait("!document.querySelector('.rows .hint').checkVisibility()")
        page.resize(1300, 1000)
        page.go(f"{url}/#/gold/metrics_1m?within=300&metric_name=cpu")
        page.wait("document.querySelectorAll('.uplot').length === 1")
        drawn = page.wait("document.querySelector('.uplot canvas').texts")
        minutes = [text for text in drawn if re.fullmatch(r"\d\d:\d\d", text)]
        assert len(minutes) >= 4
        assert sorted(set(minutes)) == minutes

        page.click("header nav a", "Gold")
        page.click(".tabs a", "product_sales")
        assert shown(page, "total") == ["12345678901234567890.123456789", "2000", "1500.5"]
        assert "over" in page.text(".bars li:nth-child(2)")

        filled.write(TABLES["product_sales"], [product("jug", "3000.25")])
        page.wait("[...document.querySelectorAll('td data')].some((one) => one.value === '3000.25')")

        page.click(".tabs a", "call_records")
        page.wait("[...document.querySelectorAll('.rows td')].some((one) => one.innerText === '{\"x\":1}')")

        page.click("header nav a", "Dead letters")
        page.click(".sides a", HOSTILE)
        page.wait("location.hash.includes('rule=')")
        assert page.text("td .message") == "it is late +1"
        assert page.run("document.title") == "Dead letters · lakehouse"
        assert page.run("document.querySelectorAll('img').length") == 0
        page.click("button", "Discard")
        page.press("Escape")
        page.wait("document.querySelector('dialog') === null")
    away = {"/api/v1/status", "/api/v1/alerts"}  # these need a broker
    assert [one for one in page.complaints if not any(path in one for path in away)] == []


@pytest.mark.soak
@pytest.mark.parametrize("name", TABLES)
def test_values_on_the_page_are_those_of_gold(
    filled: ServedLake, page: Page, tmp_path: Path, name: str
) -> None:
    if name == "metrics_summary_10m":
        row = {**minute(start_ms=NOON_MS, avg=1 / 3), "environment": "default"}
        filled.write(TABLES[name], [{key: value for key, value in row.items() if key != "service_id"}])
    gold = newest_first(filled, TABLES[name])
    with serving(filled, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/gold/{name}?within=")
        page.wait("document.querySelector('.rows td')")
        assert len(page.run("[...document.querySelectorAll('.rows tbody tr')].map((one) => 1)")) == len(gold)
        for column, heading in numbers(TABLES[name]).items():
            expected = [row[column] for row in gold]
            assert [number_of(one) for one in shown(page, heading)] == expected, column


@pytest.mark.soak
def test_a_series_has_one_colour_in_all_charts_and_keeps_it_and_an_axis_has_its_unit(
    filled: ServedLake, page: Page, tmp_path: Path
) -> None:
    at_end = NOON_MS + 29 * MINUTE_MS
    for service in ("billing", "zeta"):
        filled.write(TABLES["metrics_1m"], [minute(service, "memory_mb", start_ms=at_end)])
    page.send("Page.addScriptToEvaluateOnNewDocument", source=NOTE_TEXTS_OF_CHARTS)
    with serving(filled, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/gold/metrics_1m?within=")
        page.wait("document.querySelectorAll('.uplot').length === 2")
        texts = "[...document.querySelectorAll('.uplot canvas')].map((one) => one.texts ?? [])"
        page.wait(f"{texts}[1]?.includes('avg (MB)')")
        assert page.run(f"{texts}[0].includes('avg')")  # the name cpu tells no unit
        cpu, memory = page.run(COLOURS_OF_CHARTS)
        assert (set(cpu), set(memory)) == ({"auth", "billing", HOSTILE}, {"billing", "zeta"})
        assert cpu["billing"] == memory["billing"]
        links = "[...document.querySelectorAll('.charts details a')].map((one) => one.textContent)"
        assert page.run(links) == [*sorted(["auth", "billing", HOSTILE]), "billing", "zeta"]
        assert len({*cpu.values(), *memory.values()}) == 4

        more = [minute(f"more-{number}", "memory_mb", start_ms=at_end) for number in range(8)]
        filled.write(TABLES["metrics_1m"], [minute("aaa", "memory_mb", start_ms=at_end)])
        page.wait(f"({COLOURS_OF_CHARTS})[1]?.aaa")
        later_cpu, later_memory = page.run(COLOURS_OF_CHARTS)
        assert later_cpu == cpu
        assert later_memory["aaa"] not in cpu.values()
        assert {name: later_memory[name] for name in memory} == memory

        page.go(f"{url}/#/gold/metrics_1m?service_id=zeta&metric_name=memory_mb&within=")
        page.wait("document.querySelectorAll('.uplot').length === 1")
        (alone,) = page.run(COLOURS_OF_CHARTS)
        assert {alone[name] for name in ("p99", "p90", "p50", "avg")} == {memory["zeta"]}
        page.go(f"{url}/#/gold/metrics_1m?within=")
        page.wait(f"({COLOURS_OF_CHARTS})[1]?.aaa")
        assert page.run(COLOURS_OF_CHARTS) == [later_cpu, later_memory]

        filled.write(TABLES["metrics_1m"], more)
        page.wait(f"{links}.includes('zeta') && {links}.includes('more-7')")
        assert len(page.run(COLOURS_OF_CHARTS)[1]) == 8


@pytest.mark.soak
def test_rows_are_sorted_by_a_click_and_stay_sorted(filled: ServedLake, page: Page, tmp_path: Path) -> None:
    totals = ["12345678901234567890.123456789", "2000", "1500.5"]
    with serving(filled, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/gold/product_sales")
        assert shown(page, "total") == totals
        scale = page.text("figcaption")
        assert scale == "total (logarithmic scale), with the threshold of 2000 marked"
        widths = page.run(
            "[...document.querySelectorAll('.track i')].map((one) => parseFloat(one.style.width))"
        )
        assert (widths[0], 0 < widths[2] < widths[1] < 5) == (100, True)

        for direction, order in (("ascending", totals[::-1]), ("descending", totals)):
            page.click("th button", "total")
            page.wait(f"document.querySelector('th[aria-sort={direction}]')?.innerText.startsWith('total')")
            assert shown(page, "total") == order
        filled.write(TABLES["product_sales"], [product("jug", "1700.25")])
        page.wait("document.querySelectorAll('.rows tbody tr').length === 4")
        assert shown(page, "total") == [*totals[:2], "1700.25", totals[2]]
        page.click("th button", "total")
        page.wait("document.querySelector('th[aria-sort=descending]') === null")


@pytest.mark.soak
def test_the_log_folds_repeated_events(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    repeated = [event(number, "failure", HOSTILE, pid=number) for number in range(6)]
    append(
        lake.settings.lake,
        [*repeated, event(6, "resolve", "3 resent", pid=6), event(7, "failure", HOSTILE, pid=7)],
    )
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/log")
        page.wait("document.querySelectorAll('tbody .message').length === 3")
        said = page.run("[...document.querySelectorAll('tbody .message')].map((one) => one.innerText)")
        assert said == [HOSTILE, "3 resent", f"{HOSTILE} 6 times since 2026-05-04 12:00:00"]
        assert (
            page.run("document.querySelector('tbody tr:last-child time').innerText") == "2026-05-04 12:00:05"
        )
        page.run(hold_answers("kind=failure"))
        page.go(f"{url}/#/log?kind=failure")
        page.wait("isHeld")
        page.go(f"{url}/#/log?kind=resolve")
        page.wait("document.querySelectorAll('tbody .message').length === 1")
        page.run("deliver()")
        page.wait("isDelivered")
        assert page.text("tbody .message") == "3 resent"
        assert page.run("document.querySelectorAll('img').length") == 0


def visited(page: Page, url: str) -> Iterator[str]:
    """Load each view from the beginning, and yield its name once it is shown."""
    for name, (address, there) in VIEWS.items():
        page.go(f"{url}/page/uPlot.LICENSE")
        page.go(f"{url}/{address}")
        page.wait(f"document.querySelector({json.dumps(there)})")
        yield name


def test_axe_finds_nothing_serious_in_the_overview_in_either_theme(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    axe = (AXE / "axe.min.js").read_text(encoding="utf-8")
    address, there = VIEWS["overview"]
    with serving(lake, tmp_path / "log") as (_, url):
        for theme in ("light", "dark"):
            page.prefer(theme)
            page.go(f"{url}/page/uPlot.LICENSE")
            page.go(f"{url}/{address}")
            page.wait(f"document.querySelector({json.dumps(there)})")
            assert page.run("document.documentElement.dataset.theme") == theme
            assert serious(page, axe) == []


@pytest.mark.soak
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(
    filled: ServedLake, page: Page, tmp_path: Path, theme: str, width: int
) -> None:
    axe = (AXE / "axe.min.js").read_text(encoding="utf-8")
    page.prefer(theme)
    page.resize(width, 900)
    with serving(filled, tmp_path / "log") as (_, url):
        for name in visited(page, url):
            assert page.run("document.documentElement.dataset.theme") == theme
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), f"{name} is cut off"
            assert serious(page, axe) == [], name
        page.go(f"{url}/{LETTER}")
        page.click("button", "Discard")
        page.wait("document.querySelector('dialog[open]')")
        assert serious(page, axe) == []


@pytest.mark.soak
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_moves_what_it_has_shown(filled: ServedLake, page: Page, tmp_path: Path, width: int) -> None:
    page.send("Page.addScriptToEvaluateOnNewDocument", source=NOTE_SHIFTS)
    page.resize(width, 900)
    with serving(filled, tmp_path / "log") as (_, url):
        for name in visited(page, url):
            page.wait("!document.querySelector('main').innerText.includes('Loading')")
            shifts = page.run("shifts")
            assert sum(value for value, *_ in shifts) < MOST_SHIFTED, (name, shifts)


@pytest.mark.soak
def test_the_theme_is_the_systems_until_it_is_chosen(filled: ServedLake, page: Page, tmp_path: Path) -> None:
    theme = "document.documentElement.dataset.theme"
    with serving(filled, tmp_path / "log") as (_, url):
        page.prefer("dark")
        page.go(f"{url}/")
        assert page.run(theme) == "dark"
        page.prefer("light")
        page.wait(f"{theme} === 'light'")
        page.click("#theme")
        page.wait(f"{theme} === 'dark'")
        page.go(f"{url}/#/checks")
        assert page.run(theme) == "dark"


@pytest.mark.soak
def test_a_letter_is_reached_and_left_by_keys_alone(filled: ServedLake, page: Page, tmp_path: Path) -> None:
    with serving(filled, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait("document.querySelector('[data-key^=\"#/letters/\"]')")
        tab_to(page, "document.activeElement.dataset.key?.startsWith('#/letters/')")
        page.press("Enter")
        page.wait("document.querySelector('pre.lines')")
        tab_to(page, "document.activeElement.textContent === 'Hex'")
        page.press(" ")
        page.wait("document.querySelector('pre.lines').textContent.startsWith('0000  3c 69 6d 67')")
        tab_to(page, "document.activeElement.textContent === 'Discard'")
        page.press("Enter")
        page.wait("document.querySelector('dialog[open]') && document.activeElement.closest('dialog')")
        page.press("Escape")
        page.wait("document.activeElement.textContent === 'Discard'")


@pytest.mark.soak
def test_a_large_record_is_shown_piece_by_piece(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late", value=b"x" * 300_000)])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/{LETTER}")
        page.wait("document.querySelector('.record')?.innerText.includes('bytes 0 to 262,144 of 300,000')")
        page.click(".record button", "Next")
        page.wait(
            "document.querySelector('.record').innerText.includes('bytes 262,144 to 300,000 of 300,000')"
        )
        page.click(".record button", "Hex")
        page.wait("document.querySelector('pre.lines').textContent.startsWith('40000  78 78')")
        page.click(".record button", "Show")  # the key
        page.wait("document.querySelectorAll('pre.lines')[1]?.textContent.startsWith('0000  ff')")


@pytest.mark.soak
def test_an_action_is_stopped_from_its_dialog(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/{LETTER}")
        page.click(".buttons button", "Dry run")
        page.click("dialog button", "Dry run")
        page.wait("document.querySelector('dialog .danger:not([hidden])')")
        page.click("dialog button", "Stop")
        page.wait("document.querySelector('dialog .said').innerText.includes('Stopped by local.')")


@pytest.mark.soak
def test_a_server_that_wants_a_token_is_told_one_once(filled: ServedLake, page: Page, tmp_path: Path) -> None:
    secret = Tokens(filled.settings.home).add("ada", [Scope.READ])
    with serving(filled, tmp_path / "log", "--require-token") as (_, url):
        page.go(f"{url}/#/checks")
        page.wait("document.querySelector('dialog[open] input[type=password]')")
        page.write("nonsense")
        page.press("Enter")
        page.wait("document.querySelector('dialog .trouble')?.textContent")
        page.write(secret)
        page.press("Enter")
        page.wait("document.querySelector('.suites table')")
        stored = page.run("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert secret not in stored
        page.click("#forget")
        page.wait("document.querySelector('dialog[open] input[type=password]')")


def test_axe_is_what_its_makers_have_published() -> None:
    listed = dict(line.split()[::-1] for line in AXE.with_suffix(".sha256").read_text().splitlines())
    assert listed == {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in AXE.iterdir()}


def tab_to(page: Page, is_there: str) -> None:
    for _ in range(200):
        page.press("Tab")
        if page.run(is_there):
            return
    raise AssertionError(f"no key leads to where {is_there}")


def serious(page: Page, axe: str) -> list[str]:
    """Return what axe calls serious or critical."""
    page.run(f"{axe}; undefined")
    found = page.run("axe.run(document).then((found) => found.violations)")
    return [
        f"{one['id']}: {one['help']} {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


def shown(page: Page, heading: str) -> list[str]:
    """Return the exact values of a column of the rows, with "" for a missing value."""
    script = f"""(() => {{
        const table = document.querySelector('.rows table');
        const at = [...table.querySelectorAll('th')].findIndex((one) => one.textContent === {heading!r});
        return at >= 0 && [...table.tBodies[0].rows].map((one) =>
            one.cells[at].querySelector('data')?.getAttribute('value') ?? '');
    }})()"""
    page.wait("document.querySelector('.rows table')")
    found: list[str] = page.wait(script)
    return found


def numbers(table: MergedTable) -> dict[str, str]:
    """Return a message's numeric columns and their headings."""
    wanted = {"avg", "p50", "p99", "count", "total", "total_amount", "value"}
    return {name: name.replace("_", " ") for name in table.schema.names if name in wanted}


def number_of(text: str) -> Any:
    return None if text == "" else Decimal(text)


def newest_first(lake: ServedLake, table: MergedTable) -> list[dict[str, Any]]:
    """Return the table's rows from Delta in the page's order, with floats as decimals."""
    from deltalake import DeltaTable  # noqa: PLC0415

    rows = DeltaTable(str(lake.root / "gold" / table.name)).to_pyarrow_table().to_pylist()
    order = [*(table.time_columns or ())[:1], *table.keys]
    found = sorted(rows, key=lambda row: [row[name] for name in order], reverse=True)
    return [
        {name: Decimal(repr(value)) if isinstance(value, float) else value for name, value in row.items()}
        for row in found
    ]
