"""The origin that every response names: source, version, and whether it is final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """The source of a response; both numbers are null if the table does not exist yet.

    `is_final`: nothing in it will change; null if nothing in it says so. `part` distinguishes responses of
    the same address for callers with more rights.
    """

    source: str
    generation: int | None
    version: int | None
    is_final: bool | None = None
    part: str = ""

    @property
    def members(self) -> dict[str, Any]:
        """The members that every answer has."""
        stamp = {"source": self.source, "generation": self.generation, "version": self.version}
        return stamp | {"isFinal": self.is_final}

    @property
    def etag(self) -> str:
        """Return the ETag, which changes whenever the response may."""
        known = (self.source, self.generation, self.version, self.part or None)
        return f'"{"-".join(str(one) for one in known if one is not None)}"'
