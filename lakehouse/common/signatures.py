"""Declare a function's parameters at run time, for typer and FastAPI, which read its signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from typing import Any


def keyword(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """Return a keyword-only parameter, which is required unless it has a default."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def sign(function: Callable[..., Any], parameters: Iterable[Parameter], returns: Any = None) -> None:
    """Set the signature of a function. The parameters are ordered by kind, as Python requires."""
    ordered = sorted(parameters, key=lambda one: one.kind)
    function.__dict__["__signature__"] = Signature(ordered, return_annotation=returns)
    function.__annotations__ = {one.name: one.annotation for one in ordered}
