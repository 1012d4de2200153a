"""The accepted form of a PostgreSQL URL, checked before libpq parses it.

postgresql://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?OPTION=VALUE&…]
"""

from __future__ import annotations

import re

_URL = re.compile(
    r"postgres(ql)?://"
    r"([^\s/?#@]*@)?"
    r"((?P<host>[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.%]+\])?(:[0-9]{1,5})?(,|(?=[/?]|$)))*"
    r"(/[^\s/?#@]*)?"
    r"(\?[^\s#@]*)?"
)


def check_postgres_url(text: str) -> None:
    """Raise ValueError for a URL that libpq would misread or refuse. The message quotes no part of the URL.

    libpq's own messages quote the misread part, which could be part of a password.
    """
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("it must start with postgresql://")
    if not _URL.fullmatch(text):
        raise ValueError(
            "it is not a valid URL; in a password, write / ? # @ and % as %2F %3F %23 %40 and %25"
        )
