r"""spark-submit job: merge clean rows into the tables that users read.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/gold.py --stream metrics --trigger available-now
"""

from lakehouse.commands.jobs import job

if __name__ == "__main__":
    job("gold")
