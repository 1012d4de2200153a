r"""spark-submit job: land Kafka records in Delta tables as they came.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/bronze.py --stream metrics --trigger available-now
"""

from lakehouse.commands.jobs import job

if __name__ == "__main__":
    job("bronze")
