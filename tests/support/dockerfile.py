"""The content of docker/Dockerfile, for tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def instructions(name: str) -> list[list[str]]:
    """Return the words of every instruction with a name, in order."""
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{name} ")]


def workdir() -> str:
    """Return the directory of the project in the image."""
    (found,) = {one for (one,) in instructions("WORKDIR")}
    return found


def user() -> tuple[int, int]:
    """Return the user and group under which the image runs."""
    ((words,),) = instructions("USER")
    uid, gid = words.split(":")
    return int(uid), int(gid)
