#!/usr/bin/env bash
# Make sure that tests have a Redis with TLS, which the wheel's Redis lacks. A second run changes nothing.
set -euo pipefail

cd "$(dirname "$0")/.."

. scripts/packages.sh

# redis-check-rdb is the server under another name. Debian's redis-tools includes it, and starts no service.
command -v redis-check-rdb >/dev/null || install_package redis-tools "a Redis with TLS for the tests"
