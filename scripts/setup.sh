#!/usr/bin/env bash
# Makes the virtual environment named by $1 with gapscope and its tools in it.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

command -v "$python" >/dev/null || { echo "setup: no $python found; install Python 3.11 or newer." >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: $("$python" --version) is too old; gapscope needs Python 3.11 or newer (PYTHON=... names another)." >&2; exit 1; }

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian ships the venv module apart.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
    else
        echo "setup: $python cannot make virtual environments; run 'apt-get install python3-venv' as root, then again." >&2
        exit 1
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setup: installing gapscope into $venv (a minute or two the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
