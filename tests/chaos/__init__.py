"""A real pipeline under load while everything around it fails, and what must hold at the end.

services.py     the run's own broker, Redis and PostgreSQL, ended and restarted with their data
supervisor.py   the layers as processes, restarted whenever they end, as an init system does
load.py         current events of every stream, and poison, sent until told to stop
files.py        readers of tables' logs and directories that need no Spark
faults.py       one function for each fault; those at a chosen point report whether they hit it
run.py          a seeded schedule of faults, then quiet, then the checks
checks.py       every table, topic, Redis row and PostgreSQL row against the oracles
report.py       what happened, as tables
"""
