# shellcheck shell=bash disable=SC2034
# Sourced by local.sh and test.sh: leaves a ready virtual environment in $VENV, and $ROOT.
#
#   PYTHON=...   the interpreter to use (default: the first python3 >= 3.11 on PATH)
#   LOWEST=1     install the oldest versions pyproject.toml allows, not the newest
#   LOCKED=1     install the versions of launch/requirements.lock, with which development goes on

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

version_of() { # prints X.Y if $1 is a Python that is new enough
  "$1" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    version_of "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: is no Python 3.11 or newer"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    if version_of "$candidate" >/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer on PATH; install one, or name it with PYTHON=/path/to/python3"
}

set_up() { # set_up EXTRAS: makes $VENV and installs this checkout into it with those extras
  local python version wanted stamp log
  python=$(find_python) || exit 1
  version=$(version_of "$python")
  VENV=$ROOT/.venv
  if [ -n "${LOWEST:-}" ]; then
    VENV=$ROOT/.venv-lowest-$version
  elif [ -n "${LOCKED:-}" ]; then
    VENV=$ROOT/.venv-locked-$version
  elif [ -x "$VENV/bin/python" ] && [ "$(version_of "$VENV/bin/python")" != "$version" ]; then
    VENV=$ROOT/.venv-$version
  fi
  log=$VENV/install.log
  stamp=$VENV/installed$1
  # Installed before, from this checkout and the same requirements: nothing to do.
  local files=("$ROOT"/{pyproject.toml,setup.py} "$ROOT"/vit_jax/data/jpeg/*.[ch])
  [ -z "${LOCKED:-}" ] || files+=("$ROOT/launch/requirements.lock")
  wanted="$ROOT $(cat "${files[@]}" | cksum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    echo "Using $VENV (Python $version)."
    return
  fi
  echo "Installing vit_jax$1 for Python $version into $VENV (a minute or two; log: $log) ..."
  if [ ! -x "$VENV/bin/python" ]; then
    "$python" -m venv "$VENV" >/dev/null 2>&1 ||
      fail "cannot make $VENV with $python -m venv; on Debian: apt-get install python3-venv"
  fi
  local constraints=()
  if [ -n "${LOWEST:-}" ]; then
    sed -n '/^dependencies/,/^\[tool/p' "$ROOT/pyproject.toml" | grep -oE '"[A-Za-z_-]+>=[0-9.]+' | tr -d '"' | sed 's/>=/==/' >"$VENV/lowest.txt"
    constraints=(-c "$VENV/lowest.txt")
  elif [ -n "${LOCKED:-}" ]; then
    constraints=(-c "$ROOT/launch/requirements.lock")
  fi
  # Python compiles a module when it is first imported: half the time, and a tenth less on the disk.
  # Where it may not keep what it compiles, every process would do so again, in seconds each.
  local options=(--disable-pip-version-check)
  [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || options+=(--no-compile)
  "$VENV/bin/python" -m pip install "${options[@]}" "${constraints[@]}" -e "$ROOT$1" >"$log" 2>&1 ||
    fail "pip could not install: $(grep -oE 'ERROR: .*' "$log" | head -n 1); is there a network? whole log: $log"
  echo "$wanted" >"$stamp"
}
