"""A real pipeline under load while everything around it fails, and the checks at the end.

services.py     the run's own broker, Redis and PostgreSQL, stopped and restarted with their data
supervisor.py   the layers as processes, restarted whenever they end, as by an init system
load.py         current events of every stream, and poison, sent until told to stop
files.py        readers of tables' logs and directories that need no Spark
faults.py       one function per fault; faults at a chosen point report whether they hit it
run.py          a seeded schedule of faults, then a quiet period, then the checks
checks.py       every table, topic, Redis row and PostgreSQL row against the oracles
report.py       the results, as tables
"""
