#!/bin/sh
# Check that there is a browser for the tests of pages (tests/browser.py). As root on Debian, install one.
set -eu
if [ -n "${UNIBCT_BROWSER:-}" ]; then exit 0; fi
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing chromium for the tests"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium >/dev/null
    exit 0
fi
echo "no browser for the tests: install chromium, or set UNIBCT_BROWSER to the path of a Chromium or Chrome" >&2
exit 1
