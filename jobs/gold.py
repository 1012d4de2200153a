r"""spark-submit job: merge clean rows into the tables that users read.

    spark-submit --properties-file lakehouse/spark.properties \
        jobs/gold.py --stream metrics --trigger available-now
"""

from lakehouse.application import job

if __name__ == "__main__":
    job("gold")
