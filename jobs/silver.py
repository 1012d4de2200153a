r"""spark-submit job: clean bronze rows and quarantine what is malformed or late.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/silver.py --stream metrics --trigger available-now
"""

from lakehouse.commands.jobs import job

if __name__ == "__main__":
    job("silver")
