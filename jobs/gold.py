r"""spark-submit job: merge silver rows into the gold tables.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/gold.py --stream metrics --trigger available-now
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job("gold")
