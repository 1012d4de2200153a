"""Settings for webhooks, validation of URLs, and the check that URLs without encryption are allowed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from lakehouse.common import web
from lakehouse.common.errors import SettingsError

if TYPE_CHECKING:
    from lakehouse.settings.model import Settings

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of Standard Webhooks secrets
_LEAST_SECRET = 24


def of_web(url: SecretStr) -> SecretStr:
    """Raise ValueError, which quotes no part of the URL, unless it is a web URL; credentials are allowed."""
    web.check_url(url.get_secret_value(), credentials=True)
    return url


def of_proxy(url: SecretStr) -> SecretStr:
    """Raise ValueError unless the URL is that of an HTTP proxy, or empty."""
    text = url.get_secret_value()
    if text:
        web.check_url(text, credentials=True)
        if not text.startswith("http://"):
            raise ValueError("it must start with http://: TLS to the proxy itself is not supported")
    return url


def of_token_endpoint(url: str) -> str:
    """Raise ValueError unless the URL is a web URL without credentials, or empty."""
    if url:
        web.check_url(url)
    return url


def of_api(url: str) -> str:
    """Raise ValueError unless the URL is a web URL without credentials or query, or empty."""
    if url:
        web.check_url(url, query=False)
    return url


def listed(names: object) -> object:
    """Split comma-separated names; other values are returned as they are."""
    return tuple(filter(None, map(str.strip, names.split(",")))) if isinstance(names, str) else names


def _signing(secrets: SecretStr) -> SecretStr:
    """Raise ValueError for a signing key that is too short or not in the Standard Webhooks format."""
    for one in secrets.get_secret_value().split():
        try:
            key = base64.b64decode(one.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            key = b""
        if not one.startswith(SECRET_PREFIX) or len(key) < _LEAST_SECRET:
            raise ValueError(
                f"it must be {SECRET_PREFIX} and at least {_LEAST_SECRET} bytes in base64; make one with "
                f"`echo {SECRET_PREFIX}$(openssl rand -base64 32)`"
            )
    return secrets


class WebSettings(BaseModel):
    """Settings for webhooks, and the hosts that may be reached without encryption."""

    alert_webhooks: tuple[Annotated[SecretStr, AfterValidator(of_web)], ...] = Field(
        default=(),
        description="Webhooks that receive alerts: https://[user:password@]host/…; JSON in the environment.",
    )
    http_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)] = Field(
        default=(),
        description=(
            "Other hosts that http:// URLs may name, separated by commas: passwords and data are sent to "
            "them unencrypted. Default: only this machine."
        ),
    )
    alert_webhook_secret: Annotated[SecretStr, AfterValidator(_signing)] = Field(
        default=SecretStr(""),
        description=(
            "Key that signs webhook requests: whsec_ followed by at least 24 bytes in base64. To rotate it, "
            "give two, separated by a space."
        ),
    )
    alert_webhook_ca: SecretStr = Field(
        default=SecretStr(""),
        description="CA certificates for https webhooks, in PEM. Default: the system's.",
    )
    alert_webhook_proxy: Annotated[SecretStr, AfterValidator(of_proxy)] = Field(
        default=SecretStr(""),
        description="Proxy for webhooks, http://[user:password@]host:port. Default: https_proxy.",
    )


def check_encryption(settings: Settings) -> None:
    """Raise SettingsError for an http:// URL of another machine that `http_hosts` does not allow."""
    for name, url in _urls(settings):
        if url and web.needs_permission(url, settings.http_hosts):
            host = web.host_of(url)
            raise SettingsError(
                f"LAKEHOUSE_{name} is http://{host}…, where passwords and data would be sent unencrypted: "
                f"use https://, or add {host} to LAKEHOUSE_HTTP_HOSTS"
            )


def _urls(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "SCHEMA_REGISTRY_URL", settings.schema_registry_url
    yield "KAFKA_OAUTH_TOKEN_URL", settings.kafka_oauth_token_url
    yield "S3_ENDPOINT", settings.s3_endpoint
    for one in settings.alert_webhooks:
        yield "ALERT_WEBHOOKS", one.get_secret_value()
