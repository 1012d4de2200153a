r"""spark-submit job: check tables against their expectation suites.

spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/expect.py gold --since 1h
"""

from lakehouse.cli.commands.expect import app
from lakehouse.cli.jobs import exit_with

if __name__ == "__main__":
    exit_with(app)
