#!/usr/bin/env bash
# Make sure that PostgreSQL is installed; tests start their own servers with its programs. A second run
# changes nothing. Debian's package is configured to neither create nor start a cluster.
set -euo pipefail

cd "$(dirname "$0")/.."

. scripts/packages.sh

if command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
  exit 0
fi
what="a PostgreSQL server for the tests"
install_package postgresql-common "$what"
root=()
[ "$(id -u)" -eq 0 ] || root=(sudo)
"${root[@]}" mkdir -p /etc/postgresql-common/createcluster.d
echo "create_main_cluster = false" |
  "${root[@]}" tee /etc/postgresql-common/createcluster.d/lakehouse-tests.conf >/dev/null
install_package postgresql "$what"
