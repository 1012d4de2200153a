"""Everything that goes to a terminal or a log is printable, whoever wrote it."""

from __future__ import annotations

import io
import logging
import sys
import threading
from datetime import UTC, datetime

import pytest
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from lakehouse.cli import jobs
from lakehouse.cli.commands import audit, expect
from lakehouse.cli.commands import produce as produce_report
from lakehouse.common.errors import ServiceError
from lakehouse.common.terminal import Console, LogFormatter, echo, guard_standard_error, warn
from lakehouse.dev.samples.producing import Summary
from lakehouse.operations.audit.report import Check, Difference, Report
from lakehouse.operations.quality.report import Finding, TableReport
from tests.support.terminals import left

EVIL = "k\x1b[2J\x1b[1;1Hclean\n2026-11-26 00:00:00 INFO all is well\x9b2J\u202e[red]x[/]:boom:"
SHOWN = r"k\x1b[2J\x1b[1;1Hclean\n2026-11-26 00:00:00 INFO all is well\x9b2J\u{202e}[red]x[/]:boom:"


def test_a_line_a_cell_a_heading_and_a_styled_text_show_their_escapes() -> None:
    out = io.StringIO()
    console = Console(file=out, width=400)
    table = Table(Column(EVIL), title=EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    console.print(EVIL, style="red", soft_wrap=True)
    console.print(Text.assemble(("name: ", "red"), EVIL))
    console.print(table)
    console.print(Group(EVIL, "a line"))
    with Live(EVIL, console=console):
        pass
    assert out.getvalue().count(SHOWN) == 8
    assert out.getvalue().replace("\n", "").isprintable()


def test_a_warning_goes_above_the_live_lines_and_otherwise_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    with Live("a line of the run", console=Console(file=out, force_terminal=True, width=80)) as live:
        live.refresh()
        warn("k\x1b[2J\nclean")
    warn("later")
    assert left(out.getvalue()) == [r"k\x1b[2J\nclean", "a line of the run"]
    assert capsys.readouterr() == ("", "later\n")


def test_nothing_is_folded_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out, table = io.StringIO(), Table()
    table.add_row("x" * 300, "y" * 300)
    Console(file=out).print(table, "a b " * 100)
    assert [line.count("x") for line in out.getvalue().split("\n") if "x" in line] == [300]
    assert "a b " * 99 in out.getvalue()


def test_styles_stay_where_they_were() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", legacy_windows=False)
    console.print(Text.assemble("\x1b", ("red", "red"), "\x9b"))
    assert out.getvalue() == "\\x1b\x1b[31mred\x1b[0m\\x9b\n"


def test_a_text_that_is_echoed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo("one\ntwo\x1b[2J", "three")
    assert capsys.readouterr().out == "one\\ntwo\\x1b[2J\nthree\n"


def test_a_log_record_is_one_line_and_its_traceback_is_indented() -> None:
    formatter = LogFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "key %s", (EVIL,), None)
    first, *others = formatter.format(record).split("\n")
    assert first == r"ERROR key k\x1b[2J\x1b[1;1Hclean"
    assert others == [r"    2026-11-26 00:00:00 INFO all is well\x9b2J\u{202e}[red]x[/]:boom:"]


@pytest.mark.parametrize(
    ("error", "first"), [(ServiceError(EVIL), "error: k"), (ValueError(EVIL), "Traceback (most recent")]
)
def test_errors_are_printable_and_further_lines_of_ours_are_indented(
    error: Exception, first: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["lakehouse"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    with pytest.raises(SystemExit) as ended:
        jobs.exit_with(app)
    printed = capsys.readouterr().err
    assert ended.value.code == 1
    assert printed.startswith(first)
    assert printed.replace("\n", "").isprintable()
    assert "\n2026" not in printed


def test_what_python_prints_by_itself_is_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    guard_standard_error()

    def fail() -> None:
        raise ValueError(EVIL)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert logging.lastResort is not None
    logging.lastResort.handle(logging.LogRecord("n", logging.WARNING, "f", 1, EVIL, (), None))
    printed = capsys.readouterr().err
    assert printed.count(r"k\x1b[2J\x1b[1;1Hclean") == 2
    assert printed.replace("\n", "").isprintable()


def test_reports_of_what_others_wrote_are_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    difference = Difference({"service_id": EVIL}, EVIL)
    check = Check("metrics", "gold", EVIL, 1, 2, (difference,), (EVIL,))
    audit._print(Report(datetime(2026, 3, 1, tzinfo=UTC), (check,)), Console())
    audited = capsys.readouterr().out
    finding = Finding(EVIL, "fail", success=False, observed=EVIL, unexpected=2, examples=({"id": EVIL},))
    expect._print([TableReport(EVIL, 0, 1, (finding,), 1.0)], Console())
    expected = capsys.readouterr().out
    produce_report.print_summary(Summary(1, 0, 1, 1.0, 1.0, EVIL, {}), None)
    produced = capsys.readouterr().out

    assert [printed.count(SHOWN) for printed in (audited, expected, produced)] == [7, 8, 1]
    assert (audited + expected + produced).replace("\n", "").isprintable()
