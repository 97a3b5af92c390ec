#!/usr/bin/env bash
# The same run in N real processes on this machine, as on N hosts: for tests, and to try a config before a slice.
#
#   launch/local_multihost.sh N NAME [--workdir=DIR] [--config.KEY=VALUE ...]
#
# Each line of output begins with the number of its process. Ctrl-C and SIGTERM reach all of them: they save and
# exit with 75. The exit code is the one that decides. Processes compute on the CPU, unless JAX_PLATFORMS=cuda, where
# each has one GPU. VIT_JAX=/path/to/vit_jax names the program (default: the one on PATH, else that in .venv).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/exits.sh
source "$ROOT/launch/exits.sh"
# shellcheck source=launch/numbers.sh
source "$ROOT/launch/numbers.sh"

fail() {
  echo "local_multihost.sh: $*" >&2
  exit 2
}

case ${1:-} in
  -h | --help | '') sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac
{ is_whole "$1" && [ "$1" != 0 ]; } || fail "$(shown "$1"): must be a number of processes, at least 1"
port=${VIT_JAX_PORT:-}
[ -z "$port" ] || { is_whole "$port" && ((port > 0 && port < 65536)); } ||
  fail "VIT_JAX_PORT=$(shown "$port"): must be a number from 1 to 65535"
(($# > 1)) || fail "which config? see vit_jax list"
count=$1
shift
program=${VIT_JAX:-$(command -v vit_jax || command -v "$ROOT/.venv/bin/vit_jax" || true)}
[ -n "$program" ] || fail "vit_jax is not installed; launch/local.sh installs it"

free_port() { # one that nobody listens on, below those that connections take by themselves
  local port
  for ((port = 20000 + $$ % 10000; port < 32768; port++)); do
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
  done
  fail "no free port below 32768; name one: VIT_JAX_PORT=N"
}

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} PYTHONUNBUFFERED=1
export JAX_COORDINATOR_ADDRESS=127.0.0.1:${port:-$(free_port)} JAX_NUM_PROCESSES=$count
processes=()
signalled=''
trap 'signalled=1; kill -TERM "${processes[@]}" 2>/dev/null || true' TERM INT
for ((number = 0; number < count; number++)); do
  [[ $JAX_PLATFORMS == cpu* ]] || export JAX_LOCAL_DEVICE_IDS=$number
  # In a session of its own, so that Ctrl-C comes once, from the trap: a second one would cut a save short.
  JAX_PROCESS_ID=$number setsid "$program" train "$@" > >(trap '' TERM INT; exec sed -u "s/^/$number: /") 2>&1 </dev/null &
  processes+=($!)
done

codes=()
for process in "${processes[@]}"; do
  while # a trapped signal ends `wait`, but not the process
    code=0 signalled=''
    wait "$process" || code=$?
    [ -n "$signalled" ]
  do :; done
  codes+=("$code")
done
exit "$(worst "${codes[@]}")"
