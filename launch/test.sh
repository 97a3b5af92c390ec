#!/usr/bin/env bash
# One command on a fresh machine: sets up .venv and runs the tests; arguments go to pytest.
#
#   launch/test.sh            launch/test.sh -k resume            launch/test.sh -m slow (or long)
#   PYTHON=python3.13 launch/test.sh       LOWEST=1 (oldest versions allowed), LOCKED=1 (requirements.lock)
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# Else each of a hundred processes compiles what it imports, in 2.4 s, and each worker all tests.
unset PYTHONDONTWRITEBYTECODE
set_up "[test,tpu]"
echo "Running the tests ..."
cd "$ROOT"
# Three also on two cores, as some tests wait for other processes; a fourth costs what it imports.
exec "$VENV/bin/python" -m pytest -n 3 --dist worksteal "$@"
