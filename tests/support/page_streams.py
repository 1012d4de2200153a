"""The code on the pages about streams and in CONTRIBUTING.md, as modules that can be imported."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page, given by its path from the project's root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@contextmanager
def imported(directory: Path) -> Iterator[dict[str, Any]]:
    """Write the code to modules in a directory, which can be imported during the block."""
    (payments,) = blocks("docs/streams.md", "python")
    (clicks,) = blocks("docs/streams-without-a-kind.md", "python")
    (suite,) = blocks("CONTRIBUTING.md", "python")
    texts = {"page_payments": payments, "page_clicks": clicks, "page_suite": suite}
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield {name: importlib.import_module(name) for name in texts}
    finally:
        sys.path.remove(str(directory))
        for name in texts:
            sys.modules.pop(name, None)
