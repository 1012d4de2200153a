"""The page's views of dead letters in a real, headless Chromium: filters, messages, copies, and one letter.

No test starts a replay; the one in tests/integration replays a letter with real layers.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from tests.support.browser import Page
from tests.support.served_lakes import ServedLake, letter
from tests.support.serving import serving

pytestmark = pytest.mark.soak
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
LETTER = f"#/letters/{1:064x}"
LISTED = "[...document.querySelectorAll('[data-key^=\"#/letters/\"]')]"
NOTE_ACTIONS = """(() => {
    const ask = window.fetch;
    const done = {id: '1', status: 'succeeded', lines: [], result: {asked: 2, wouldPass: 1}};
    window.wanted = [];
    window.fetch = (path, options = {}) => {
        if (options.method !== 'POST') return ask(path, options);
        window.wanted.push(options.body);
        return Promise.resolve(new Response(JSON.stringify(done), {status: 202}));
    };
})()"""
NOTE_COPIES = """(() => {
    const make = URL.createObjectURL;
    navigator.clipboard.writeText = async (text) => { window.copied = text; };
    URL.createObjectURL = (blob) => {
        blob.text().then((text) => { window.saved = text; });
        return make.call(URL, blob);
    };
    HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };
})()"""


def test_letters_of_a_topic_are_listed_and_an_action_takes_only_these(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    others = [letter(2, "late", topic="metricsTopic"), letter(3, "not_json", topic="metricsTopic")]
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), *others])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 3")
        page.run(NOTE_ACTIONS)
        page.click(".sides a", "metricsTopic")
        page.wait(f"{LISTED}.length === 2")
        assert page.run("document.querySelector('[name=topic]').value") == "metricsTopic"
        assert page.run("document.querySelector('[name=status]').value") == "open"

        page.click(".sides a", "late")
        page.wait(f"{LISTED}.length === 1")
        for verb in ("Dry run", "Discard"):
            page.click(".sides button", verb)
            assert "of metrics from the topic metricsTopic with the rule late" in page.text("dialog p")
            page.click("dialog button.main", verb)
            page.wait("document.querySelector('dialog .said')?.textContent.includes('Done.')")
            page.press("Escape")
            if verb == "Dry run":
                assert page.text(".tried").endswith("found that 1 of 2 would pass.")
                page.click(".sides button", "Replay")
                assert "found that 1 of 2 would pass." in page.text("dialog p:nth-of-type(3)")
                page.press("Escape")
        page.wait("document.querySelector('.tried').innerText === ''")
        which = {"stream": ["metrics"], "topic": "metricsTopic", "rule": "late"}
        assert [json.loads(one) for one in page.run("wanted")] == [
            {"action": "replay", **which, "dryRun": True},
            {"action": "discard", **which},
        ]

        page.go(f"{url}/#/letters?topic=metrics-event")
        assert "no topic 'metrics-event': did you mean metrics-events?" in page.text(".sides .trouble")
        assert page.run("document.querySelectorAll('.sides button, .sides table').length") == 0
        assert page.run("document.querySelector('[name=topic]').value") == "metrics-event"


def test_the_number_that_a_replay_would_pass_is_there_before_it_can_be_confirmed(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), letter(2, "late")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 2")
        page.run(NOTE_ACTIONS)
        page.run("""(() => {
            const ask = window.fetch;
            const held = new Promise((go) => { window.answer = go; });
            window.fetch = async (...one) => { const said = await ask(...one); await held; return said; };
        })()""")
        page.click(".sides button", "Replay")
        assert page.text("dialog .foretold") == "Counting the letters that would pass now …"
        assert page.run("document.querySelector('dialog button.main').disabled")
        page.run("window.answer()")
        page.wait("document.querySelector('dialog .foretold').innerText === '1 of 2 would pass now'")
        page.wait("!document.querySelector('dialog button.main').disabled")
        page.click("dialog button.main", "Replay")
        page.wait("document.querySelector('dialog .said')?.textContent.includes('Done.')")
        replay = {"action": "replay", "all": True}
        assert [json.loads(one) for one in page.run("wanted")] == [{**replay, "dryRun": True}, replay]

        page.press("Escape")
        page.run("""(() => {
            const ask = window.fetch;
            window.fetch = (path, options = {}) => options.method === 'POST'
                ? Promise.resolve(new Response('{}', {status: 409})) : ask(path, options);
        })()""")
        page.click(".sides button", "Replay")
        page.wait("document.querySelector('dialog .foretold .trouble')")
        assert page.run("document.querySelector('dialog button.main').disabled")


def test_a_span_that_is_no_number_is_refused_and_the_next_filter_counts(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), letter(2, "not_json")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters?within=x")
        assert page.text(".sides .trouble")
        page.run("location.hash = '#/letters?rule=late&status=open'")
        page.wait(f"{LISTED}.length === 1")


def test_letters_are_found_by_a_text_and_nothing_can_be_done_to_more_than_these(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), letter(2, "not_json", "late"), letter(3, "future")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 3")
        page.click("[name=text]")
        page.write("IS LATE")
        page.press("Tab")
        page.wait(f"{LISTED}.length === 2")
        assert "cannot select letters by text" in page.text(".sides section:last-child p.muted")
        assert page.run("document.querySelectorAll('.sides .danger').length") == 0


def test_the_list_says_why_and_shows_the_text_of_strangers_as_text(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    tried = letter(2, "late", "wrong_type", "future", attempts=3, value=b"<img src=y>")
    lake.write_spec(DEAD_LETTERS, [letter(1, HOSTILE, topic=HOSTILE, value=HOSTILE.encode()), tried])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 2")
        said = page.run("[...document.querySelectorAll('td .message')].map((one) => one.innerText)")
        assert said == ["it is late +2", f"it is {HOSTILE}"]
        values = page.run("[...document.querySelectorAll('td .value')].map((one) => one.innerText)")
        assert values == ["<img src=y>"]  # the other value is in its message
        tries = "[...document.querySelectorAll('.sides section:last-child tbody tr')]"
        assert page.run(f"{tries}.map((one) => one.lastChild.innerText)") == ["3", ""]
        page.click(".sides section:last-child a", HOSTILE)
        page.wait(f"{LISTED}.length === 1")
        assert page.run("document.querySelector('[name=topic]').value") == HOSTILE
        assert page.run("document.querySelectorAll('img').length") == 0
        assert page.run("document.title") == "Dead letters · lakehouse"
    assert [one for one in page.complaints if "/api/v1/status" not in one] == []  # which needs a broker


def test_listed_letters_are_copied_and_saved_as_json_lines(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(number, HOSTILE, value=b"secret") for number in range(60)])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 50")
        page.run(NOTE_COPIES)
        page.click("button", "Copy as JSON lines")
        lines = page.wait("window.copied").split("\n")
        page.click("button", "Download as JSON lines")
        assert page.wait("window.saved").split("\n") == lines
        assert page.run("savedAs") == "dead-letters.jsonl"
        rows = [json.loads(line) for line in lines[:-1]]
        assert [row["offset"] for row in rows] == [*range(59, 9, -1)]
        assert rows[0]["reasons"] == [{"rule": HOSTILE, "column": None, "message": f"it is {HOSTILE}"}]
        assert {"key", "value", "headers"}.isdisjoint(rows[0])


def test_letters_are_grouped_by_shape_once_the_section_is_opened(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    values = (b'{"amount": "12"}', b'{"amount": "13"}', b'{"<img src=x>": 1}')
    lake.write_spec(
        DEAD_LETTERS, [letter(number, "late", value=value) for number, value in enumerate(values)]
    )
    lake.write_spec(DEAD_LETTERS, [letter(3, "not_json", value=b"{", topic="metricsTopic")])
    groups = "[...document.querySelectorAll('.shapes li')].map((one) => one.innerText.replace(/\\s+/g, ' '))"
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 4")
        assert page.run("document.querySelectorAll('.shapes li').length") == 0
        page.click("summary", "By shape of the value")
        page.wait("document.querySelectorAll('.shapes li').length === 3")
        assert page.run(groups) == [
            "{amount: string} 2 letters: late 2; metrics-events; newest",
            "not JSON 1 letter: not_json 1; metricsTopic; newest",
            '{"<img src=x>": number} 1 letter: late 1; metrics-events; newest',
        ]
        page.click(".sides a", "metricsTopic")
        page.wait("document.querySelectorAll('.shapes li').length === 1")
        page.click(".shapes a", "newest")
        page.wait("location.hash.startsWith('#/letters/0')")
    assert [one for one in page.complaints if "/api/v1/status" not in one] == []


def test_a_letters_record_is_found_in_every_layer(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/{LETTER}")
        page.click(".lead a", "Find the record")
        page.wait("location.hash.startsWith('#/streams/metrics?record=')")
        assert page.text(".find h3") == "metrics-events/0/1 in metrics"
        found = "[...document.querySelectorAll('.find tbody tr')].map((one) => one.cells[1].innerText)"
        assert page.run(found)[:3] == ["not there", "not there", "open"]
        page.click(".find input")
        page.run("document.activeElement.select()")
        page.write(f"{1:064x}")
        page.press("Enter")
        page.wait("location.hash.endsWith('1') && document.querySelector('.find h3')")
        assert page.text(".find h3") == "metrics-events/0/1 in metrics"
        page.run("document.querySelector('.find input').value = 'nothing'")
        page.click(".find button", "Find")
        assert "no stream's records have ids" in page.text(".find [role=alert]")


def test_ids_like_a_letters_or_like_coordinates_are_found_and_looked_up_again(
    lake: ServedLake, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_STREAMS", '{"transactions": {"unique_by": "id"}}')
    topic = "transactions-topic"

    def write(number: int, id_: str) -> None:
        own: dict[str, Any] = {"stream": "transactions", "topic": topic, "unique_id": id_}
        lake.write_spec(DEAD_LETTERS, [letter(number, "late", **own)])

    write(1, "orders/7/1")
    write(2, "ab" * 32)
    titles = "[...document.querySelectorAll('.find h3')].map((one) => one.innerText).join()"
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/streams/transactions?record=orders/7/1")
        page.wait(f"{titles} === '{topic}/0/1 in transactions'")
        page.go(f"{url}/#/streams/transactions?record={'ab' * 32}")
        page.wait(f"{titles} === '{topic}/0/2 in transactions'")
        write(3, "ab" * 32)
        page.click(".find button", "Find")
        page.wait(f"{titles} === '{topic}/0/2 in transactions,{topic}/0/3 in transactions'")
        page.go(f"{url}/#/streams/transactions?record=orders/7/2")
        assert page.text(".find [role=alert]").startswith("no stream reads topic 'orders'")


def test_a_live_update_leaves_the_focus_on_the_shapes(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters")
        page.wait(f"{LISTED}.length === 1")
        page.run("document.querySelector('.shapes summary').focus()")
        lake.write_spec(DEAD_LETTERS, [letter(2, "late")])
        page.wait(f"{LISTED}.length === 2")
        assert page.run("document.activeElement.tagName") == "SUMMARY"


def test_times_are_chosen_by_one_click(lake: ServedLake, page: Page, tmp_path: Path) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    times = "['since', 'until', 'within'].map((one) => document.querySelector(`[name=${one}]`)?.value)"
    today = datetime.now(UTC).date()
    midnights = [f"{today + timedelta(days=days)}T00:00:00Z" for days in (-1, 0, 1)]
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/letters?within=900")
        for name, span in (("yesterday", midnights[:2]), ("today", midnights[1:])):
            page.click("a.choice", name)
            page.wait(f"{times}.join() === '{','.join(span)},'")
        page.click("a.choice", "last hour")
        page.wait(f"{times}[1] === ''")
        since = datetime.fromisoformat(page.run(f"{times}[0]"))
        assert timedelta(minutes=59) < datetime.now(UTC) - since < timedelta(minutes=61)
        page.run("document.querySelector('[name=within]').value = '3600'")
        page.run(
            "document.querySelector('[name=within]').dispatchEvent(new Event('change', {bubbles: true}))"
        )
        page.wait(f"{times}.join() === ',,3600'")


def test_json_in_a_string_is_laid_out_and_numbers_are_copied_as_they_are(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    value = '{"payload": "{\\"price\\": 1.50, \\"of\\": \\"<img src=x>\\"}"}'
    places = {"partition": 1000, "offset": 1234567, "batch": 4711}
    lake.write_spec(DEAD_LETTERS, [{**letter(1, "late", value=value.encode()), **places}])
    shown = "document.querySelector('pre.lines')?.textContent"
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/{LETTER}")
        expected = '{\n  "payload": (JSON in a string) {\n    "price": 1.50,\n    "of": "<img src=x>"\n  }\n}'
        assert page.wait(shown) == expected
        page.click(".record button", "Text")
        page.wait(f"{shown} === {json.dumps(value)}")
        page.run(NOTE_COPIES)
        facts = page.text(".facts-list")
        for name, number in places.items():
            assert f"{number} " in facts
            page.click(".facts-list button", f"the {name}")
            page.wait(f"window.copied === '{number}'")
