#!/usr/bin/env bash
# Make sure that Chromium is installed. Tests open pages in it. A second run changes nothing.
set -euo pipefail

cd "$(dirname "$0")/.."

. scripts/packages.sh

for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
install_package chromium "a browser (Chromium or Chrome) for the tests"
