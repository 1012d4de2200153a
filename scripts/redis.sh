#!/usr/bin/env bash
# Make sure that there is a Redis with TLS, which the wheel's has not, for the tests. A second run changes nothing.
set -euo pipefail

cd "$(dirname "$0")/.."

. scripts/packages.sh

# The server's own file, under the name of a tool: Debian's package of the tools starts no service.
command -v redis-check-rdb >/dev/null || install_package redis-tools "a Redis with TLS for the tests"
