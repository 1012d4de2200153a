r"""spark-submit job: take what is new in the topics through all layers at once.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties \
        jobs/pipeline.py --stream metrics --trigger "1 second"

How far each layer has come is in the tables, so this job and those of the layers may take turns.
"""

from lakehouse.commands.jobs import job

if __name__ == "__main__":
    job()
