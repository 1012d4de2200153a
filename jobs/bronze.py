r"""spark-submit job: append raw Kafka records to the bronze Delta tables.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/bronze.py --stream metrics --trigger available-now
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job("bronze")
