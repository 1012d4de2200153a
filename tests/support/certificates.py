"""Certificate files for local servers, from an authority that belongs to the test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lakehouse.dev.services.certificates import Authority


@dataclass(frozen=True)
class Certified:
    """A certificate for localhost and 127.0.0.1 with its key, and the authority that signed it, as files."""

    certificate: Path
    key: Path
    authority: Path


def certified(directory: Path, name: str = "ada", *, until: datetime | None = None) -> Certified:
    """Create the three files in a directory."""
    authority, found = Authority(), (directory / f"{name}.{kind}" for kind in ("crt", "key", "ca"))
    files = Certified(*found)
    texts = (*authority.issue(name, until=until), authority.pem)
    for path, text in zip(vars(files).values(), texts, strict=True):
        path.write_text(text)
    return files
