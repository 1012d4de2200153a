r"""spark-submit job: parse and validate bronze rows, and turn malformed and late records into dead letters.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/silver.py --stream metrics --trigger available-now
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job("silver")
