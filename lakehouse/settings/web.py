"""Validate URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.common import web

if TYPE_CHECKING:
    from pydantic import SecretStr


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
