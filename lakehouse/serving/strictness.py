"""Refuse requests that contain unknown parameters, or unknown names as parameter values.

If a misspelt filter were ignored, the response would contain everything. A route therefore answers 400 to an
undeclared parameter, to a repeated parameter that takes only one value, and to an unknown name.

All use of undocumented FastAPI internals is confined to this module (docs/internals.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from http import HTTPStatus
from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Scope

from lakehouse.common.nearest import no_such, shown
from lakehouse.serving.problems import Problem


def path_of(scope: Scope) -> str | None:
    """Return the path of a request's route as it was declared, or None if no route matched."""
    return getattr(scope.get("route"), "path", None)


def parameters_of(request: Request) -> dict[str, bool] | None:
    """Return the names of a route's query parameters, and whether each parameter may be repeated.

    Return None if no route matched the request.
    """
    route = request.scope.get("route")
    return dict(_declared(route.dependant)) if isinstance(route, APIRoute) else None


def _declared(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield the parameters of a route and its dependencies."""
    for field in dependant.query_params:
        yield field.alias, get_origin(field.field_info.annotation) in {list, set, tuple}
    for one in dependant.dependencies:
        yield from _declared(one)


_LONGEST = 64
_MOST = 20
"""The maximum number of errors that a response lists."""


def refuse_unknown_parameters(request: Request) -> None:
    """Raise Problem 400 if a parameter is not declared by the route, or is repeated but takes one value.

    Every route depends on this function, so routes do not have to list their parameters.
    """
    declared = parameters_of(request) if request.query_params else None
    if declared is None:
        return
    given = Counter(name for name, _ in request.query_params.multi_items())
    found = [
        {"parameter": name[:_LONGEST], "detail": detail}
        for name, times in given.items()
        if (detail := _wrong(name, times, declared)) is not None
    ][:_MOST]
    if found:
        detail = "; ".join(one["detail"] for one in found)
        raise Problem(HTTPStatus.BAD_REQUEST, detail, errors=found)


def refuse_unknown(parameter: str, values: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise Problem 400 if a value of a parameter is not a known name."""
    for value in values:
        if value not in known:
            detail = no_such(what, value, known)
            found = [{"parameter": parameter, "detail": detail}]
            raise Problem(HTTPStatus.BAD_REQUEST, f"{parameter}: {detail}", errors=found)


def _wrong(name: str, times: int, declared: dict[str, bool]) -> str | None:
    if name not in declared:
        return no_such("parameter", name, declared)
    if times > 1 and not declared[name]:
        return f"the parameter {shown(name)} was given {times} times; it takes one value"
    return None
