"""The command line and the spark-submit jobs, which parse arguments, call other packages and print."""
