r"""spark-submit job: run all layers in one Spark application.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/pipeline.py --stream metrics --trigger "1 second"

The tables store each layer's progress, so you can switch between this job and the single-layer jobs.
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job()
