"""The start of a run by `lakehouse run` or a job: its lines are shown before slow packages are imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehouse.cli.options import skipped

if TYPE_CHECKING:
    from lakehouse.engine.layers import Allow, LayerName
    from lakehouse.settings import Settings


def run_chosen(
    settings: Settings,
    layers: Sequence[LayerName],
    names: Sequence[str],
    trigger: str,
    *,
    allow: Sequence[Allow],
    skip: Sequence[str],
    backfill: bool,
    standby: bool,
    verbose: bool,
    gate: bool = False,
) -> None:
    """Run layers of the streams with these names, or of all streams if none are given.

    The settings must come from `load_settings`. With `gate`, gold is exported only while the suites of all
    streams hold. Raises SettingsError for an unknown stream or settings that do not fit the streams, and the
    errors of `run_layers`.
    """
    from lakehouse.operations.lines import shown_lines
    from lakehouse.streams.names import chosen_names

    with shown_lines(chosen_names(names, settings), layers, settings, trigger) as lines:
        from lakehouse.engine.runtime.runner import RunOptions
        from lakehouse.operations.running import run_layers
        from lakehouse.streams.registry import checked, choose, load

        settings = checked(settings)
        streams = choose(names, settings)
        options = RunOptions(
            trigger, allow=allow, skip=skipped(skip, settings, streams), is_backfill=backfill
        )
        by = load(settings) if gate else ()
        run_layers(settings, layers, streams, options, lines, gated_by=by, standby=standby, verbose=verbose)
