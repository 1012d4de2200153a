"""`python -m lakehouse` is the `lakehouse` command."""

from __future__ import annotations

from lakehouse.cli import main

if __name__ == "__main__":
    main()
