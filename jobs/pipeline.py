r"""spark-submit job: run all layers in one Spark application.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/pipeline.py --stream metrics --trigger "1 second"

The tables store each layer's progress, so this job and the single-layer jobs can alternate.
"""

from lakehouse.cli.jobs import job

if __name__ == "__main__":
    job()
