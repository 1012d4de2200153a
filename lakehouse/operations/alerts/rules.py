"""Alerting rules, read from the `alerts` section of the settings.

A rule describes a problem with a stream or with a service's metric. All rules are validated. Error messages
name unknown keys and kinds, and list the known ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lakehouse.common.errors import SettingsError, StoreWord
from lakehouse.engine.layers import LayerName
from lakehouse.operations.telemetry import Word
from lakehouse.settings.alerts import AlertsSettings

DEFAULT_RULES = Path(__file__).with_name("alerts.toml")
_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Threshold = Annotated[float, Field(allow_inf_nan=False)]


class Severity(StrEnum):
    """An alert's urgency."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Rule(_Part):
    """The fields that all rules share. An alert fires once the condition has held for `for_s` seconds."""

    name: _Name
    for_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    severity: Severity = Severity.WARNING


_Checked = TypeVar("_Checked", bound=_Rule)


class _OfStream(_Rule):
    """A rule for one stream, or for every stream if `stream` is None."""

    stream: str | None = None


class MetricRule(_Rule):
    """Fires when a metric was above or below a threshold in each of the last `windows` minutes.

    The metric's statistic is read from gold's one-minute statistics of services' metrics. If `service` is
    None, the rule is evaluated for each service that has the metric. A series is not evaluated if its newest
    window ended more than `stale_s` seconds ago.
    """

    kind: Literal["metric"]
    metric: str
    service: str | None = None
    statistic: Literal["avg", "min", "max", "p50", "p90", "p95", "p99"] = "avg"
    over: _Threshold | None = None
    under: _Threshold | None = None
    windows: int = Field(default=1, ge=1, le=60)
    stale_s: _Seconds = 3600

    @model_validator(mode="after")
    def _one_threshold(self) -> MetricRule:
        return _one_of(self, "over", "under")


class LagRule(_OfStream):
    """Fires when a layer's lag exceeds a number of records or seconds."""

    kind: Literal["lag"]
    layer: LayerName
    records: int | None = Field(default=None, ge=0)
    seconds: _Seconds | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> LagRule:
        return _one_of(self, "records", "seconds")


class FreshnessRule(_OfStream):
    """Fires when the stream's newest event is older than `seconds`."""

    kind: Literal["freshness"]
    seconds: _Seconds


class DeadLetterRule(_OfStream):
    """Fires when the share of recently landed records that became dead letters exceeds `over`.

    Only the last `within_s` seconds count.
    """

    kind: Literal["dead_letter_rate"]
    over: float = Field(ge=0, lt=1)
    within_s: _Seconds = 600


class GateRule(_OfStream):
    """Fires when the stream's gate is closed."""

    kind: Literal["gate_closed"]


class AuditFailedRule(_OfStream):
    """Fires when the stream's latest audit was not clean."""

    kind: Literal["audit_failed"]


class AuditOldRule(_OfStream):
    """Fires when the stream's latest audit is older than `seconds`, or the stream has never been audited."""

    kind: Literal["audit_old"]
    seconds: _Seconds


class HealthRule(_OfStream):
    """Fires when the stream's health is one of `words`."""

    kind: Literal["health"]
    words: tuple[Word, ...] = Field(min_length=1)


class StoreRule(_OfStream):
    """Fires for each store of each export whose state is one of `words`."""

    kind: Literal["store"]
    words: tuple[StoreWord, ...] = Field(min_length=1)


StreamRule = LagRule | FreshnessRule | DeadLetterRule | GateRule | AuditFailedRule | AuditOldRule | HealthRule
Rule = MetricRule | StoreRule | StreamRule
_KINDS: dict[str, type[_Rule]] = {
    get_args(one.model_fields["kind"].annotation)[0]: one for one in get_args(Rule)
}


class InGold(_Part):
    """The objective: records reach gold within `within_s` seconds for a fraction `objective` of the time."""

    within_s: _Seconds = 30
    objective: float = Field(default=0.99, gt=0, lt=1)


class Rules(_Part):
    """The alerting rules, and the objective for how quickly records reach gold."""

    in_gold: InGold = InGold()
    rules: tuple[Annotated[Rule, Field(discriminator="kind")], ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Rules:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"duplicate rule names: {', '.join(twice)}; names must be unique")
        return self


def load_rules(alerts: AlertsSettings, streams: Sequence[str]) -> Rules:
    """Return the alerting rules and the objective from the settings, with defaults for unset values.

    Raises SettingsError for invalid fields and for a rule whose stream is not in `streams`. The message lists
    all invalid fields, or names the first rule with an unknown stream.
    """
    given = {"rules": alerts.rules, "in_gold": alerts.in_gold}
    raw = tomllib.loads(DEFAULT_RULES.read_text(encoding="utf-8"))
    raw |= {name: value for name, value in given.items() if value is not None}
    try:
        rules = Rules.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(f"alerts: {_explain(error, raw)}") from None
    for rule in rules.rules:
        stream = getattr(rule, "stream", None)
        if stream is not None and stream not in streams:
            raise SettingsError(
                f"alerts: rule {rule.name}: unknown stream {stream}; known: {', '.join(sorted(streams))}"
            )
    return rules


def _one_of(rule: _Checked, first: str, second: str) -> _Checked:
    if (getattr(rule, first) is None) == (getattr(rule, second) is None):
        raise ValueError(f"specify either {first} or {second}")
    return rule


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    return "; ".join(
        _line(item["type"], item["loc"], item["msg"], raw)
        for item in error.errors(include_url=False, include_input=False)
    )


def _line(problem: str, location: tuple[int | str, ...], message: str, raw: dict[str, Any]) -> str:
    model: type[BaseModel] = Rules
    where = ""
    keys = [str(part) for part in location]
    if location[:1] == ("rules",) and len(location) > 1 and isinstance(location[1], int):
        rule = raw["rules"][location[1]]
        fields = rule if isinstance(rule, dict) else {}
        where = f"rule {fields.get('name', location[1] + 1)}: "
        model, keys = _KINDS.get(str(fields.get("kind")), _Rule), keys[3:]
    elif location[:1] == ("in_gold",):
        where, model, keys = "in_gold: ", InGold, keys[1:]
    key = ".".join(keys)
    if problem == "extra_forbidden":
        return f"{where}unknown key {key}; known: {', '.join(sorted(model.model_fields))}"
    if problem in {"union_tag_invalid", "union_tag_not_found"}:
        return f"{where}kind must be one of {', '.join(sorted(_KINDS))}"
    return f"{where}{key}: {message}" if key else f"{where}{message.removeprefix('Value error, ')}"
