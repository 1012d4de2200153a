#!/usr/bin/env bash
# Archive the classes that Spark loads at its start: scripts/class_archive.sh VENV [later]. The archive is for
# this Java and these jars. A second run changes nothing. `later` runs in the background, so that a first demo
# does not wait for it.
set -euo pipefail

venv=$1
cd "$(dirname "$0")/.."

archive=$venv/share/lakehouse/classes.jsa
made_for=$(java -version 2>&1 | cat - requirements/runtime.txt lakehouse/storage/spark/jars.sha256 lakehouse/storage/spark/scala/disk/* \
  lakehouse/storage/spark/*.properties | cksum)
[ ! -f "$archive" ] || [ "$(cat "$archive.for" 2>/dev/null)" != "$made_for" ] || exit 0

log=$venv/share/lakehouse/classes.log
if [ "${2:-}" = later ]; then
  echo "setup: archiving the classes of Spark's start in the background, once (about a minute): later starts are faster"
  nohup nice -n 10 "$venv/bin/python" -m lakehouse.dev.class_archive "$made_for" </dev/null >"$log" 2>&1 &
else
  echo "setup: archiving the classes of Spark's start (about a minute)"
  "$venv/bin/python" -m lakehouse.dev.class_archive "$made_for" >"$log" 2>&1 ||
    echo "setup: no archive of classes was made ($log); everything works without it, and starts some seconds later" >&2
fi
