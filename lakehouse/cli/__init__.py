"""The command line and the spark-submit jobs: they parse arguments, call other packages and print results."""
