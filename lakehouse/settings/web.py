"""Validate URLs, and check that unencrypted URLs are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse.common import web
from lakehouse.common.errors import SettingsError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from lakehouse.settings.model import Settings


def of_web(url: SecretStr) -> SecretStr:
    """Raise ValueError unless the value is a web URL, with or without credentials.

    The message never quotes any part of the value.
    """
    web.check_url(url.get_secret_value(), credentials=True)
    return url


def of_proxy(url: SecretStr) -> SecretStr:
    """Raise ValueError unless the value is empty or the URL of an HTTP proxy."""
    text = url.get_secret_value()
    if text:
        web.check_url(text, credentials=True)
        if not text.startswith("http://"):
            raise ValueError("it must start with http://: TLS to the proxy itself is not supported")
    return url


def of_token_endpoint(url: str) -> str:
    """Raise ValueError unless the URL is empty or a web URL without credentials."""
    if url:
        web.check_url(url)
    return url


def of_api(url: str) -> str:
    """Raise ValueError unless the URL is empty or a web URL without credentials or a query."""
    if url:
        web.check_url(url, query=False)
    return url


def check_encryption(settings: Settings) -> None:
    """Raise SettingsError for an http:// URL to another machine that `http_hosts` does not allow."""
    for name, url in _urls(settings):
        if url and web.needs_permission(url, settings.http_hosts):
            host = web.host_of(url)
            raise SettingsError(
                f"{name} is http://{host}…, so passwords and data would be sent unencrypted: "
                f"use https://, or add {host} to http_hosts (LAKEHOUSE_HTTP_HOSTS)"
            )


def _urls(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "schema_registry.url", settings.schema_registry.url
    yield "kafka.oauth_token_url", settings.kafka.oauth_token_url
    yield "s3.endpoint", settings.s3.endpoint
    for one in settings.alerts.webhooks:
        yield "alerts.webhooks", one.get_secret_value()
