#!/usr/bin/env bash
# Put the runtime jars of lakehouse/spark/ivy.xml under VENV/share/lakehouse/jars/{spark,kafka}.
#
#   scripts/jars.sh VENV            fetch and compare with jars.sha256 (offline once cached)
#   scripts/jars.sh VENV --relock   fetch and write jars.sha256 anew, after a change of ivy.xml
#
# Downloads are kept in ${LAKEHOUSE_CACHE:-~/.cache/lakehouse}/ivy and checked twice: by Ivy against the
# repository's checksums, and here against the committed SHA-256 of every jar.
set -euo pipefail

venv=$1
mode=${2:-verify}
here=$(cd "$(dirname "$0")/.." && pwd)
lock=$here/lakehouse/spark/jars.sha256
cache=${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lakehouse}/ivy
target=$venv/share/lakehouse/jars

if [ "$mode" = verify ] && [ -d "$target" ] && (cd "$target" && sha256sum --quiet --check "$lock" >/dev/null 2>&1); then
  exit 0
fi

ivy=$("$venv/bin/python" -c 'import pathlib, pyspark; print(*pathlib.Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))')
log=$(mktemp)
trap 'rm -f "$log"' EXIT
rm -rf "$target"
mkdir -p "$cache" "$target"
echo "jars: resolving the runtime jars (about 100 MB on the first run, none after)"
if ! java -jar "$ivy" -ivy "$here/lakehouse/spark/ivy.xml" -cache "$cache" -confs spark kafka \
  -retrieve "$target/[conf]/[artifact]-[revision].[ext]" >"$log" 2>&1; then
  grep -E 'WARN|ERROR|UNRESOLVED|FAILED' "$log" | head -20 >&2 || true
  echo "jars: the runtime jars could not be resolved; is the Maven repository reachable? Run it again when it is." >&2
  exit 1
fi

cd "$target"
if [ "$mode" = --relock ]; then
  find . -name '*.jar' | LC_ALL=C sort | xargs sha256sum >"$lock"
  echo "jars: wrote $(wc -l <"$lock") checksums"
elif ! sha256sum --quiet --check "$lock" >&2; then
  rm -rf "$target"
  echo "jars: a jar differs from lakehouse/spark/jars.sha256 and was removed; delete $cache and run again." >&2
  exit 1
fi
