#!/usr/bin/env bash
# Archive the classes that Spark loads at startup: scripts/class_archive.sh VENV [later]. The archive is valid
# only for this Java and these jars. A second run changes nothing. With `later`, it runs in the background, so
# the first demo does not wait for it.
set -euo pipefail

venv=$1
cd "$(dirname "$0")/.."

archive=$venv/share/lakehouse/classes.jsa
made_for=$(java -version 2>&1 | cat - requirements/runtime.txt lakehouse/storage/spark/jars.sha256 lakehouse/storage/spark/scala/disk/* \
  lakehouse/storage/spark/*.properties | cksum)
[ ! -f "$archive" ] || [ "$(cat "$archive.for" 2>/dev/null)" != "$made_for" ] || exit 0

log=$venv/share/lakehouse/classes.log
if [ "${2:-}" = later ]; then
  echo "setup: archiving Spark's startup classes in the background, once (about a minute), for faster starts later"
  nohup nice -n 10 "$venv/bin/python" -m lakehouse.dev.class_archive "$made_for" </dev/null >"$log" 2>&1 &
else
  echo "setup: archiving Spark's startup classes (about a minute)"
  "$venv/bin/python" -m lakehouse.dev.class_archive "$made_for" >"$log" 2>&1 ||
    echo "setup: the class archive was not created (see $log); everything works without it, but starts some seconds slower" >&2
fi
