#!/usr/bin/env bash
# Make sure that Prometheus and its promtool are installed. Tests use them to check the alerting rules. A
# second run changes nothing.
set -euo pipefail

cd "$(dirname "$0")/.."

. scripts/packages.sh

if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
  exit 0
fi
install_package prometheus "Prometheus (with promtool) for the tests"
