"""An MkDocs hook that adds pages to docs/: from the project's root, from the code, and from linked files.

Links are written for the repository. In the site, a link to a file outside docs/ leads to that file's page or
to a copy of its text. A page with more than 1,200 words causes a warning, which `mkdocs build --strict`
refuses.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

import docs_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LIMIT_WORDS = 1200
OF_ROOT = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "promises.md",
}
"""Pages outside docs/: their paths in the repository, mapped to their paths in the site."""
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.docs_site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and a copy of each file in the repository that a page links to."""
    for path, uri in OF_ROOT.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for uri, text in docs_reference.pages().items():
        files.append(File.generated(config, uri, content=text))
    linked = {
        target
        for file in files.documentation_pages()
        for link, _heading in _LINK.findall(file.content_string)
        if (target := _target(file.src_uri, link)) is not None
    }
    for path in sorted(linked):
        for uri, text in _copies(path):
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return the page with its links changed for the site."""
    uri = page.file.src_uri
    words = len(markdown.split())
    if words > LIMIT_WORDS:
        _log.warning("%s has %s words, so split it: a page may have at most %s", uri, words, LIMIT_WORDS)
    text = re.sub(r"^```(\w+) (runnable|sink)$", r"```\1", markdown, flags=re.MULTILINE)
    return _LINK.sub(lambda found: _link(uri, found), text)


def _link(uri: str, found: re.Match[str]) -> str:
    link, heading = found[1], found[2] or ""
    there = _in_repository(uri, link)
    target = _target(uri, link)
    if target is not None:
        to = _place(target)
    elif there in OF_ROOT:
        to = OF_ROOT[there]
    elif there.startswith("docs/") and uri in OF_ROOT.values():
        to = there.removeprefix("docs/") + ("/README.md" if (ROOT / there).is_dir() else "")
    else:
        return found[0]
    return f"]({posixpath.relpath(to, posixpath.dirname(uri) or '.')}{heading})"


def _in_repository(uri: str, link: str) -> str:
    """Return a link's target as a path from the project's root."""
    of_root = {place: path for path, place in OF_ROOT.items()}
    return posixpath.normpath(posixpath.join(posixpath.dirname(of_root.get(uri, f"docs/{uri}")), link))


def _target(uri: str, link: str) -> str | None:
    """Return the file or directory outside docs/ that a link leads to, or None if it leads to a page."""
    path = _in_repository(uri, link)
    is_ours = (
        not path.startswith(("docs/", "../")) and path not in OF_ROOT and not uri.startswith("reference/")
    )
    return path if is_ours and (ROOT / path).exists() else None


def _place(path: str) -> str:
    return f"files/{path}.md" if (ROOT / path).is_dir() else f"files/{path}.txt"


def _copies(path: str) -> list[tuple[str, str]]:
    """Return the site's copies of a file or directory outside docs/: its text, or a list of its files."""
    if (ROOT / path).is_file():
        return [(_place(path), (ROOT / path).read_text(encoding="utf-8"))]
    found = sorted(one.relative_to(ROOT).as_posix() for one in (ROOT / path).rglob("*") if one.is_file())
    base = posixpath.dirname(_place(path))
    links = "\n".join(f"- [{one}]({posixpath.relpath(_place(one), base)})" for one in found)
    return [(_place(path), f"# {path}\n\n{links}\n"), *(copy for one in found for copy in _copies(one))]
