#!/usr/bin/env bash
# Make everything that the project runs with: scripts/setup.sh VENV. A second run changes nothing.
#
# What takes root (a Java runtime, Python's venv module) is installed by apt where that is possible, and
# else named in one line.
set -euo pipefail

venv=$1
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."

. scripts/packages.sh

java_version() {
  java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1
}

command -v "$python" >/dev/null || fail "$python is missing; install Python 3.11 or newer, or name one: make PYTHON=…"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old; Python 3.11 or newer is needed: make PYTHON=…"

if ! command -v java >/dev/null || [ "$(java_version)" -lt 17 ]; then
  install_package openjdk-17-jre-headless "Java 17 or newer"
fi

# One stamp over everything that decides what is installed: nothing is done while it matches.
stamp=$venv/.installed
wanted=$(cat requirements/build.txt requirements/dev.txt pyproject.toml | sha256sum)
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  if [ ! -x "$venv/bin/python" ]; then
    "$python" -c 'import ensurepip' 2>/dev/null ||
      install_package "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" "Python's venv module"
    rm -rf "$venv"
    "$python" -m venv "$venv"
  fi
  echo "setup: installing the locked dependencies into $venv (a minute or two)"
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location)
  "${pip[@]}" --require-hashes -r requirements/build.txt
  "${pip[@]}" --require-hashes --no-build-isolation -r requirements/dev.txt
  PYTHONWARNINGS=ignore "${pip[@]}" --no-deps --no-build-isolation --editable . 2>/dev/null ||
    fail "the project itself could not be installed into $venv: run $venv/bin/python -m pip install --no-deps -e ."
  echo "$wanted" >"$stamp"
fi

"$venv/bin/python" -m lakehouse.spark.installing

# What Spark's start loads, as one archive: for this Java and these jars.
archive=$venv/share/lakehouse/classes.jsa
made_for=$(java -version 2>&1 | cat - requirements/runtime.txt lakehouse/spark/jars.sha256 lakehouse/spark/scala/disk/* \
  lakehouse/*.properties | sha256sum)
if [ ! -f "$archive" ] || [ "$(cat "$archive.for" 2>/dev/null)" != "$made_for" ]; then
  echo "setup: archiving the classes of Spark's start (about a minute)"
  rm -f "$archive"
  "$venv/bin/python" -m lakehouse.sandbox.class_archive >/dev/null 2>&1 && echo "$made_for" >"$archive.for" ||
    echo "setup: no archive of classes was made; everything works without it, and starts some seconds later" >&2
fi
