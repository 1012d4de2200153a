"""The command line and the spark-submit jobs: parse, call, print."""
