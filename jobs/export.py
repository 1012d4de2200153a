r"""spark-submit job: send changed gold rows to Kafka, Redis and PostgreSQL.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/export.py --stream metrics --trigger available-now
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job("export")
