"""The route that answers a request, and what it declares.

Everything of FastAPI that it does not document is here (docs/internals.md); nobody else touches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Scope


def path_of(scope: Scope) -> str | None:
    """Return the path of a request's route as it is declared, null if no route has taken the request."""
    return getattr(scope.get("route"), "path", None)


def parameters_of(request: Request) -> dict[str, bool] | None:
    """Return the names of the query parameters that a request's route takes, and whether one may be repeated.

    Null if no route has taken the request.
    """
    route = request.scope.get("route")
    return dict(_declared(route.dependant)) if isinstance(route, APIRoute) else None


def _declared(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield the parameters of a route and of what it depends on."""
    for field in dependant.query_params:
        yield field.alias, get_origin(field.field_info.annotation) in {list, set, tuple}
    for one in dependant.dependencies:
        yield from _declared(one)
