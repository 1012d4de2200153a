"""Great Expectations' Data Docs as plain pages, without scripts or external resources.

Its own pages load scripts and styles from seven hosts, and render a table's values as markup. These pages
contain its blocks in templates of our own: values are escaped, and a Content-Security-Policy forbids browsers
to load or run anything.
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
    """A page, or the index; our templates replace Great Expectations' templates of the same name."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        theirs = self.env.loader
        assert theirs is not None  # noqa: S101 - the constructor has set it
        self.env.loader = ChoiceLoader([PackageLoader("lakehouse.quality", "page"), theirs])

    @pass_context
    def render_content_block(self, jinja_context: Any, content_block: Any, *rest: Any, **options: Any) -> Any:
        """Return a part of a page as HTML; plain strings, such as a table's values, are escaped."""
        parts = content_block if isinstance(content_block, list) else [content_block]
        text = [escape(part, quote=False) if isinstance(part, str) else part for part in parts]
        block = text if isinstance(content_block, list) else text[0]
        return super().render_content_block(jinja_context, block, *rest, **options)


def make_plain(context: AbstractDataContext) -> None:
    """Make a context write its Data Docs with these pages."""
    sections = {name: {"view": _VIEW} for name in ("expectations", "validations", "profiling")}
    index = {"class_name": "DefaultSiteIndexBuilder", "view": _VIEW}
    sites: Any = context.variables.data_docs_sites
    site: Any = {
        **sites[_SITE],
        "site_index_builder": index,
        "site_section_builders": sections,
    }
    context.update_data_docs_site(_SITE, site)
