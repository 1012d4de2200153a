#!/usr/bin/env bash
# Build the source distribution and the wheel into build/dist, and try the wheel: scripts/dist.sh VENV.
#
# The wheel is built from the source distribution, as anyone without a checkout would do. It is then installed
# into an empty environment with the locked versions and without extras, and processes three records.
set -euo pipefail

venv=$1
cd "$(dirname "$0")/.."
dist=$PWD/build/dist
rm -rf build/dist build/smoke
mkdir -p "$dist"

fail() {
  echo "dist: $*" >&2
  exit 1
}

"$venv/bin/python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$dist" >build/sdist.log 2>&1 ||
  fail "no source distribution was built: $(tail -1 build/sdist.log)"
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$dist" "$dist"/*.tar.gz
wheel=$(echo "$dist"/*.whl)
version=$(basename "$wheel" | cut -d- -f2)
case $version in
  *dev*) ;;
  *) grep -q "^## $version, 20" CHANGELOG.md || fail "CHANGELOG.md has no heading \"## $version, DATE\": add it before tagging" ;;
esac

echo "dist: trying $(basename "$wheel") in an empty environment"
uv=$(command -v uv || echo "$venv/bin/uv")
"$venv/bin/python" -m venv build/smoke
"$uv" pip install --quiet --python build/smoke/bin/python --no-build-isolation --require-hashes -r requirements/build.txt
"$uv" pip install --quiet --python build/smoke/bin/python --no-build-isolation --constraint requirements/runtime.txt "$wheel"
cat >build/smoke/records.jsonl <<'RECORDS'
{"userId":"ann","amount":7,"timestamp":1767225600000}
{"userId":"ann","amount":5,"timestamp":1767225601000}
{"userId":"bob","amount":"much","timestamp":1767225602000}
RECORDS
(
  cd build/smoke # so nothing in the checkout is on Python's path
  export LAKEHOUSE_HOME=$PWD/home
  bin/lakehouse --version
  bin/lakehouse setup >setup.log 2>&1 || fail "lakehouse setup failed: $(tail -1 setup.log)"
  bin/lakehouse try transactions records.jsonl --now 2026-01-01T00:10:00Z --format json >tried.json 2>tried.log ||
    [ $? -eq 1 ] || fail "lakehouse try failed: $(tail -1 tried.log)" # 1: there is a dead letter
  bin/python - <<'CHECK'
import json

with open("tried.json", encoding="utf-8") as file:
    tried = json.load(file)
totals = {(one["user_id"], float(one["total_amount"])) for one in tried["gold"]["user_transactions_5m"]}
if (tried["records"], tried["dead"], totals) != (3, 1, {("ann", 12.0)}):
    raise SystemExit(f"dist: lakehouse try shows {tried['dead']} dead letters and the totals {totals}")
print("dist: lakehouse try processes three records correctly")
CHECK
)
rm -rf build/smoke
(cd "$dist" && sha256sum -- *.tar.gz *.whl >SHA256SUMS && cat SHA256SUMS)
