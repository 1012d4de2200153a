#!/usr/bin/env bash
# Resolve requirements/*.in into hash-locked requirements/*.txt without index addresses, and the jars of
# ivy.xml into jars.sha256 and jars.licences: scripts/lock.sh VENV. Needs the network. uv, which writes the
# hashes, is itself locked by hash. To upgrade it, change its version in requirements/lock.in. To lock changes
# without upgrading other packages: LOCK_UPGRADE= scripts/lock.sh VENV.
set -euo pipefail

venv=$1
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$venv/bin/python" -m pip install --quiet --target "$tools" --require-hashes \
  --requirement requirements/lock.txt
for name in lock build runtime sandbox dev; do
  PYTHONPATH=$tools "$venv/bin/python" -m uv pip compile --quiet --universal --python-version 3.11 ${LOCK_UPGRADE---upgrade} \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
    "requirements/$name.in" --output-file "requirements/$name.txt"
done
"$venv/bin/python" -c "from lakehouse.storage.spark.installing import lock_jars; lock_jars()"
"$venv/bin/python" scripts/jar_licences.py
