"""The `alerts` section: the alerting rules and the destinations."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr

from lakehouse.settings.fields import Section
from lakehouse.settings.secrets import secret_in
from lakehouse.settings.web import of_proxy, of_web

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of Standard Webhooks secrets
_LEAST_SECRET = 24


def _signing(secrets: SecretStr) -> SecretStr:
    """Raise ValueError if a signing key is too short or not in the Standard Webhooks format."""
    for one in secrets.get_secret_value().split():
        try:
            key = base64.b64decode(one.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            key = b""
        if not one.startswith(SECRET_PREFIX) or len(key) < _LEAST_SECRET:
            raise ValueError(
                f"it must be {SECRET_PREFIX} followed by at least {_LEAST_SECRET} bytes in base64; create "
                f"one with `echo {SECRET_PREFIX}$(openssl rand -base64 32)`"
            )
    return secrets


def state_topic(topic: str) -> str:
    """Return the name of the topic that holds the state of the alerts in a topic."""
    return f"{topic}-state"


class AlertsSettings(Section):
    """The alert settings. `lakehouse.operations.alerts.rules` validates the rules."""

    rules: tuple[dict[str, Any], ...] | None = Field(
        default=None,
        description=(
            "The alerting rules; each is a table [[alerts.rules]]. Default: the rules in docs/alerts.md."
        ),
    )
    in_gold: dict[str, Any] | None = Field(
        default=None,
        description=(
            "Objective: records reach gold within `within_s` seconds for a fraction `objective` of the time."
        ),
    )
    topic: str = Field(
        default="lakehouse-alerts",
        pattern=r"^[a-zA-Z0-9._-]{1,240}$",
        description=(
            "Kafka topic to which alerts are sent. `lakehouse alert` keeps its state in a second topic, "
            "NAME-state."
        ),
    )
    webhooks: tuple[Annotated[SecretStr, AfterValidator(of_web)], ...] = Field(
        default=(), description="Webhooks that receive alerts: https://[user:password@]host/…."
    )
    webhook_secret: Annotated[SecretStr, AfterValidator(_signing)] = Field(
        default=SecretStr(""),
        description=(
            "Key with which webhook requests are signed: whsec_ followed by at least 24 bytes in base64. To "
            "rotate the key, set two keys, separated by a space."
        ),
    )
    webhook_ca: Path | None = Field(
        default=None,
        description=(
            "PEM file with the CA certificates of https webhooks. Default: the system's certificates."
        ),
    )
    webhook_proxy: Annotated[SecretStr, AfterValidator(of_proxy)] = Field(
        default=SecretStr(""),
        description=(
            "Proxy for webhooks: http://[user:password@]host:port. Default: the environment's https_proxy."
        ),
    )

    @property
    def webhook_certificates(self) -> SecretStr:
        """The contents of `webhook_ca`, read on each use, or an empty secret if no file is set."""
        return secret_in(self.webhook_ca, "alerts.webhook_ca")
