r"""spark-submit job: compare every layer with the previous layer, and the exports with gold.

spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/audit.py --stream metrics
"""

from lakehouse.cli.commands.audit import app
from lakehouse.cli.jobs import exit_with

if __name__ == "__main__":
    exit_with(app)
