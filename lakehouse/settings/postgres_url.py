"""What a PostgreSQL URL may look like; libpq reads it.

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
    """Raise ValueError, which quotes no part of it, for what libpq would misread or refuse.

    libpq quotes in its messages what it misreads, which may be a part of a password.
    """
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("it has to begin with postgresql://")
    if not _URL.fullmatch(text):
        raise ValueError(
            "it cannot be read as a URL; in a password / ? # @ and % are written %2F %3F %23 %40 and %25"
        )
