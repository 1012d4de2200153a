"""`python -m lakehouse` runs the `lakehouse` command.

Started this way, Python looks for modules in the working directory first. A file there could shadow an
installed package, so the working directory is removed from the path before any other import.
"""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib imports more
    del sys.path[0]

from lakehouse.cli.main import main

if __name__ == "__main__":
    main()
