"""A real pipeline under load while everything around it fails, and what must hold at the end.

services.py     a broker, a Redis and a PostgreSQL of its own, ended and started again as they were
supervisor.py   the layers as processes, started again whenever they end, as an init system does
load.py         events of every stream near now, and poison, sent until told to stop
files.py        what tables' logs and directories say, read without Spark
faults.py       one function a fault; those at a chosen point say whether it was hit
run.py          a seeded schedule of faults, then quiet, then the checks
checks.py       every table, topic, Redis row and PostgreSQL row against the oracles
report.py       what happened, as tables
"""
