#!/usr/bin/env bash
# Download Apicurio, the schema registry for tests, into an environment: scripts/apicurio.sh VENV. It needs
# Java 21 or later, which this script does not install. Without it, the tests are skipped with a message. A
# second run changes nothing.
set -euo pipefail

venv=$1
cd "$(dirname "$0")/.."

. scripts/packages.sh

name=apicurio-registry-app-3.3.3-all.tar.gz
sum=8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63
target=$venv/share/lakehouse/apicurio
if [ "$(cat "$target/.fetched" 2>/dev/null)" = "$sum" ]; then
  exit 0
fi
if ! "$venv/bin/python" -c 'from tests.support.registries import java; java()' 2>/dev/null; then
  echo "setup: there is no Java 21 or later, so Apicurio Registry is not fetched, and its tests are skipped"
  exit 0
fi
echo "setup: fetching Apicurio Registry for the tests (155 MB)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ivy=$("$venv/bin/python" -c 'import pathlib, pyspark; print(*pathlib.Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))')
java -jar "$ivy" -ivy scripts/apicurio.xml -cache "$work/cache" -retrieve "$work/[artifact]-[revision](-[classifier]).[ext]" \
  >"$work/log" 2>&1 || fail "Apicurio could not be fetched; is the Maven repository reachable? $(grep -m1 -E 'ERROR|FAILED' "$work/log")"
echo "$sum  $work/$name" | sha256sum --check --quiet || fail "the checksum of $name differs from the one in scripts/apicurio.sh"
rm -rf "$target"
mkdir -p "$target"
tar -xzf "$work/$name" -C "$target"
echo "$sum" >"$target/.fetched"
