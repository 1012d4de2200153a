"""Strict requests: unknown parameters, and unknown names as their values, are refused.

If a misspelt filter were ignored, the response would contain everything. So a route answers 400 for a
parameter that it does not declare, a second value where it takes one, and a value that is not a known name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from http import HTTPStatus

from fastapi import Request

from lakehouse.common.nearest import no_such, shown
from lakehouse.serving.fastapi_internals import parameters_of
from lakehouse.serving.problems import Problem

_LONGEST = 64
_MOST = 20
"""Maximum number of errors that a response lists."""


def refuse_unknown_parameters(request: Request) -> None:
    """Raise Problem 400 for parameters that the route does not declare, or takes only once.

    This is a dependency of every route, so no route needs its own list.
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
    """Raise Problem 400 for the first value of a parameter that is not a known name."""
    for value in values:
        if value not in known:
            detail = no_such(what, value, known)
            found = [{"parameter": parameter, "detail": detail}]
            raise Problem(HTTPStatus.BAD_REQUEST, f"{parameter}: {detail}", errors=found)


def _wrong(name: str, times: int, declared: dict[str, bool]) -> str | None:
    if name not in declared:
        return no_such("parameter", name, declared)
    if times > 1 and not declared[name]:
        return f"the parameter {shown(name)} is given {times} times; it takes one value"
    return None
