"""`/api/v1/gates` and `/api/v1/expectations`: the state of the export gates, and expectation results."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lakehouse.serving.answers import Origin, answered
from lakehouse.serving.parameters import Page, iso
from lakehouse.serving.reading.delta import Found
from lakehouse.serving.reading.events import Ops
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.serving.routes.data_docs import INDEX
from lakehouse.serving.strictness import refuse_unknown
from lakehouse.streams.messages.layout import Row

TableName = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only this table, such as gold.metrics_1m.")
]


def router(lookups: Lookups, ops: Ops, tables: Collection[str], site: Path) -> APIRouter:
    """Return the routes for ops.gates and ops.expectation_results.

    `tables` names those with suites, and `site` is the directory of the Data Docs.
    """
    routes = APIRouter(prefix="/api/v1", tags=["checks"])

    @routes.get("/gates")
    async def gates(request: Request, page: Page) -> Response:
        """Return the current state of each gate that has been checked. Times are ISO 8601 UTC."""
        found = await lookups.scan(ops.gates)
        shown, following = page.of("gates", found.value)
        return answered(request, _origin(found), {"gates": [_gate(row) for row in shown], **following})

    @routes.get("/expectations")
    async def expectations(request: Request, page: Page, table: TableName = None) -> Response:
        """Return the expectation results from the latest check of each table.

        `dataDocs` is the path of the pages that `lakehouse expect` has written in this server's `home`, or
        null if there are none.
        """
        found = await lookups.scan(ops.results)
        if table is not None:
            known = {*tables, *(row["table"] for row in found.value)}
            refuse_unknown("table", [table], known, "table")
        rows, following = page.of("findings", [row for row in found.value if table in (None, row["table"])])
        pages = INDEX if (site / "index.html").is_file() else None
        told = {"expectations": list(map(_result, rows)), "dataDocs": pages, **following}
        return answered(request, _origin(found), told)

    return routes


def _origin(found: Found[list[Row]]) -> Origin:
    return Origin("ops", found.generation, found.version)


def _gate(row: Row) -> Mapping[str, Any]:
    return {
        "stream": row["stream"],
        "isOpen": row["is_open"],
        "changedAt": iso(row["changed_at"] // 1000),
        "reasons": row["reasons"],
    }


def _result(row: Row) -> Mapping[str, Any]:
    return {
        "table": row["table"],
        "expectation": row["expectation"],
        "severity": row["severity"],
        "success": row["success"],
        "checkedAt": iso(row["checked_at"] // 1000),
        "version": row["version"],
        "rows": row["rows"],
        "observed": row["observed"],
        "unexpected": row["unexpected"],
        "examples": json.loads(row["examples"] or "[]"),
        "error": row["error"],
        "runId": row["run_id"],
    }
