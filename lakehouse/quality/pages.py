"""Great Expectations' Data Docs as plain pages: no scripts, and nothing that is loaded from anywhere.

Its own pages load scripts and styles from seven hosts, and show a table's values as markup. Here its parts
stand in a page of ours. Values are text, and the page's policy (Content-Security-Policy) forbids a browser to
load or run anything.
"""

from __future__ import annotations

from html import escape
from typing import Any

from great_expectations.data_context import AbstractDataContext
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader, pass_context

_SITE = "local_site"
_VIEW = {"module_name": __name__, "class_name": "Page"}


class Page(DefaultJinjaPageView):
    """A page or the index; our templates go before Great Expectations' with the same name."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        theirs = self.env.loader
        assert theirs is not None  # noqa: S101 - their constructor has just set it
        self.env.loader = ChoiceLoader([PackageLoader("lakehouse.quality", "page"), theirs])

    @pass_context
    def render_content_block(self, jinja_context: Any, content_block: Any, *rest: Any, **options: Any) -> Any:
        """Return a part of a page as HTML; what is a plain string, such as a value of a table, is text."""
        parts = content_block if isinstance(content_block, list) else [content_block]
        text = [escape(part, quote=False) if isinstance(part, str) else part for part in parts]
        block = text if isinstance(content_block, list) else text[0]
        return super().render_content_block(jinja_context, block, *rest, **options)


def make_plain(context: AbstractDataContext) -> None:
    """Let a context that keeps Data Docs write them with these pages."""
    sections = {name: {"view": _VIEW} for name in ("expectations", "validations", "profiling")}
    index = {"class_name": "DefaultSiteIndexBuilder", "view": _VIEW}
    sites: Any = context.variables.data_docs_sites
    site: Any = {
        **sites[_SITE],
        "site_index_builder": index,
        "site_section_builders": sections,
    }
    context.update_data_docs_site(_SITE, site)
