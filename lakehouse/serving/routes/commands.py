"""`/api/v1/actions`: replay, discard, audit, expect, rebuild and maintain. Requires the scope `operate`."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lakehouse.serving.answers import camel, plain
from lakehouse.serving.child_commands import Action, Actions
from lakehouse.serving.parameters import Page
from lakehouse.serving.problems import Problem, unprocessable
from lakehouse.serving.security.access import caller_of
from lakehouse.serving.strictness import refuse_unknown

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.][^\x00]*$")]
Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Id = Annotated[str, Path(alias="id", max_length=100, description="The action's id.")]
_LETTERS = ("topic", "rule", "since", "until", "id")
_DRY = ("--dry-run", "--format=json")


class WantedAction(BaseModel):
    """A command to run, with the same options as the CLI command of that name."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": [{"action": "replay", "rule": "late", "dryRun": True}]},
    )

    action: Literal["replay", "discard", "audit", "expect", "rebuild", "maintain"]
    stream: list[Name] = Field(default=[], max_length=20, description="Only these streams.")
    topic: Topic | None = Field(None, description="For replay and discard: only records from this topic.")
    rule: Name | None = Field(None, description="For replay and discard: only records that break this rule.")
    since: Name | None = Field(
        None, description="For replay and discard: only records first refused at this time or later."
    )
    until: Name | None = Field(
        None, description="For replay and discard: only records first refused before this time."
    )
    id: Name | None = Field(
        None, description="For replay and discard: only dead letters whose id starts with this prefix."
    )
    all: bool = Field(default=False, description="For replay and discard: every open dead letter.")
    dry_run: bool = Field(
        default=False,
        alias="dryRun",
        description="For replay: only count the dead letters that would pass, and write nothing.",
    )
    layer: Literal["silver", "gold"] | None = Field(None, description="For rebuild: the layer to rebuild.")
    table: list[Name] = Field(default=[], max_length=50, description="For expect: only these tables.")

    def command(self) -> list[str]:
        """Return the CLI arguments. Raises Problem for an option that the command does not have."""
        self._refuse_foreign()
        streams = [f"--stream={one}" for one in self.stream]
        if self.action in {"replay", "discard"}:
            given = [f"--{name}={value}" for name in _LETTERS if (value := getattr(self, name)) is not None]
            options = [*given, *(["--all"] if self.all else []), *(_DRY if self.dry_run else [])]
            return ["dead-letters", self.action, *streams, *options]
        if self.action == "rebuild":
            if self.layer is None:
                raise unprocessable("layer", "a rebuild needs a layer: silver or gold")
            return ["rebuild", *streams, self.layer]
        return [self.action, *streams, *(["--", *self.table] if self.table else [])]

    def _refuse_foreign(self) -> None:
        of_letters, of = self.action in {"replay", "discard"}, self.action
        known = {"action"}
        known |= {*_LETTERS, "all", "stream"} if of_letters else set()
        known |= {"dry_run"} if of == "replay" else set()
        known |= {"layer", "stream"} if of == "rebuild" else {"table"} if of == "expect" else set()
        known |= {"stream"} if of in {"audit", "maintain"} else set()
        for name in sorted(self.model_fields_set - known):
            raise unprocessable(camel(name), f"the action {of} has no such option")


def router(actions: Actions, streams: Collection[str]) -> APIRouter:
    """Return the routes for actions; `streams` contains the names of the declared streams."""
    routes = APIRouter(prefix="/api/v1/actions", tags=["actions"])

    @routes.post("", status_code=HTTPStatus.ACCEPTED)
    async def start(request: Request, wanted: WantedAction) -> Response:
        """Start a command in a separate process. Answers 409 while another command is running."""
        refuse_unknown("stream", wanted.stream, streams, "stream")
        action = await actions.start(wanted.command(), caller_of(request).name)
        return plain(_said(action), HTTPStatus.ACCEPTED)

    @routes.get("")
    async def newest(page: Page) -> Response:
        """Return the last hundred actions since the server started, newest first and without their output."""
        shown, following = page.of("actions", actions.newest())
        return plain({"actions": list(map(_said, shown)), **following})

    @routes.get("/{id}")
    async def one(id_: Id) -> Response:
        """Return an action, with the last thousand lines of its output."""
        action = actions.get(id_)
        if action is None:
            raise _unknown(id_)
        return plain({**_said(action), "lines": list(action.lines)})

    @routes.delete("/{id}", status_code=HTTPStatus.ACCEPTED)
    async def cancel(request: Request, id_: Id) -> Response:
        """Ask a running action to stop. Its status becomes `cancelled`; a finished action does not change."""
        action = actions.cancel(id_, caller_of(request).name)
        if action is None:
            raise _unknown(id_)
        return plain(_said(action), HTTPStatus.ACCEPTED)

    return routes


def _unknown(id_: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND, f"there is no action {id_}; the last hundred are kept until the server restarts"
    )


def _said(action: Action) -> dict[str, Any]:
    return {
        "id": action.id,
        "actor": action.actor,
        "command": f"lakehouse {' '.join(action.command)}",
        "status": action.status.value,
        "cancelledBy": action.cancelled_by,
        "startedAt": action.started_at.isoformat(),
        "endedAt": None if action.ended_at is None else action.ended_at.isoformat(),
        "exitCode": action.exit_code,
        "result": None
        if action.result is None
        else {camel(name): one for name, one in action.result.items()},
    }
