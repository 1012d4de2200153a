"""`python -m lakehouse` is the `lakehouse` command.

Python looks for modules in the working directory first when it is started so. Anybody's file there could take
the place of an installed package, so the directory is taken from the path before more is imported.
"""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib imports more
    del sys.path[0]

from lakehouse.cli import main

if __name__ == "__main__":
    main()
