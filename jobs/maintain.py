r"""spark-submit job: clear what only merging needs from gold rows that are too old to be updated.

spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/maintain.py --stream metrics
"""

from lakehouse.commands.jobs import exit_with
from lakehouse.commands.maintain import app

if __name__ == "__main__":
    exit_with(app)
