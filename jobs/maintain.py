r"""spark-submit job: delete old rows, compact and vacuum tables, and clear fold state in gold.

spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/maintain.py --stream metrics
"""

from lakehouse.cli.commands.maintain import app
from lakehouse.cli.jobs import exit_with

if __name__ == "__main__":
    exit_with(app)
