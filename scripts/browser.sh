#!/usr/bin/env bash
# Installs Debian's chromium for the browser tests where this user may; says so where not.
set -euo pipefail
for name in chromium chromium-headless-shell; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "browser: installing chromium"
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; then
        exit 0
    fi
fi
echo "browser: no chromium here and it could not be installed; the browser tests are skipped." \
     "As root: apt-get install chromium" >&2
