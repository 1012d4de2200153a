#!/usr/bin/env bash
# Set up everything that the project needs to run: scripts/setup.sh VENV [dev]. A second run changes nothing.
# `dev` adds what tests and checks need.
#
# A Java runtime and Python's venv module need root: apt installs them if possible, otherwise one line names
# them. uv installs the packages into the environment: the uv on PATH, or else the locked one.
set -euo pipefail

venv=$1
lock=sandbox
[ "${2:-}" != dev ] || lock=dev
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."

. scripts/packages.sh

java_version() {
  java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1
}

command -v "$python" >/dev/null || fail "$python is missing; install Python 3.11 or newer, or specify one: make PYTHON=…"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old; Python 3.11 or newer is needed: make PYTHON=…"

if ! command -v java >/dev/null || [ "$(java_version)" -lt 17 ]; then
  install_package openjdk-17-jre-headless "Java 17 or newer"
fi

# A line for each lock, with a checksum of every file that determines the installed packages. If it matches,
# nothing is installed. The lock `dev` includes the others.
wanted() { # LOCK
  echo "$1 $(cat requirements/build.txt "requirements/$1.txt" pyproject.toml | cksum)"
}
stamp=$venv/.installed
there=$(cat "$stamp" 2>/dev/null || true)
if [ ! -x "$venv/bin/python" ] || { [ "$there" != "$(wanted $lock)" ] && [ "$there" != "$(wanted dev)" ]; }; then
  if [ ! -x "$venv/bin/python" ]; then
    rm -rf "$venv"
    if command -v uv >/dev/null; then
      uv venv --quiet --python "$python" "$venv"
    else
      "$python" -c 'import ensurepip' 2>/dev/null ||
        install_package "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" "Python's venv module"
      "$python" -m venv "$venv"
    fi
  fi
  uv=$(command -v uv || echo "$venv/bin/uv")
  if [ ! -x "$uv" ]; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt ||
      fail "uv, which installs the packages, could not be fetched; check that the package registry is reachable, and run this again"
  fi
  echo "setup: installing $(grep -c '==' "requirements/$lock.txt") locked packages into $venv (about 700 MB on the first run, none after)"
  install() {
    "$uv" pip install --python "$venv/bin/python" --no-build-isolation "$@" 2>&1
  }
  # On a terminal, uv draws a progress bar; elsewhere, it prints lines. The list of packages is omitted.
  packages() {
    if [ -t 1 ]; then install "$@"; else install "$@" | awk '!/^ [-+~] / { print; fflush() }'; fi
  }
  packages --require-hashes -r requirements/build.txt &&
    packages --require-hashes -r "requirements/$lock.txt" ||
    fail "the locked packages could not be installed into $venv; run this again, if necessary after deleting $venv"
  if [ "$("$venv/bin/python" -m pip list 2>/dev/null | grep -c '^lakehouse ')" != 0 ]; then
    "$uv" pip uninstall --quiet --python "$venv/bin/python" lakehouse # the project's name until 2026-11-27
  fi
  install --quiet --no-deps --editable . ||
    fail "the project itself could not be installed into $venv: run $venv/bin/python -m pip install --no-deps -e ."
  wanted "$lock" >"$stamp"
fi

"$venv/bin/python" -m lakehouse.storage.spark.installing
