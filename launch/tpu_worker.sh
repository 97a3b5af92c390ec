#!/usr/bin/env bash
# What launch/tpu.sh has each TPU VM do; it is copied there and not meant to be typed.
#
#   setup EXTRAS [V] installs ~/vit_jax.tgz, or the wheel in it, into ~/vit_jax/venv, for Python V
#   health CHIPS     all hosts together count their chips; host 0 says what it found
#   start WORDS...   `vit_jax WORDS` in a session of its own, which outlives this connection
#   clear SECONDS    ends what still runs: SIGTERM, and after so many seconds SIGKILL
#   stop SECONDS     SIGTERM, which saves, and waits so long for the end
#   status           one line: none, running, exited CODE, stopped CODE, or killed
#   poll OFFSET      `status` and the size of the log, then the log from that byte
#   follow LINES [S] the last lines of the log, and what comes, until the run ends; every S seconds an empty line
#   joined WORDS...  WORDS, as one of the processes of the slice: for launch/sky.yaml
#
# A run is ~/vit_jax/run: command, log, pid, and exit once it is over. Whoever holds `lock` is running:
# no process id can be mistaken for that of another, not even after a reboot.
#
# setsid, and not nohup or systemd-run: a session without a terminal gets no SIGHUP, needs no root, leaves
# its exit code in a file that outlives it, and is the same on any machine, so that tests run it as it is.
set -euo pipefail
# shellcheck source=launch/secrets.sh
source "$(dirname "${BASH_SOURCE[0]}")/secrets.sh"

BASE=$HOME/vit_jax
RUN=$BASE/run
VENV=$BASE/venv
PORT=8476 # where host 0 awaits the others; firewalls of a VPC's own hosts leave it open

metadata() { # metadata KEY: what the slice says of itself
  curl -sf --connect-timeout 5 --max-time 20 --retry 5 --retry-max-time 60 -H 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

say() { # to standard output, where gcloud keeps it apart from what it says itself
  hush "worker $NUMBER: $*"
}

fail() { # fail CODE TEXT...
  say "${*:2}"
  exit "$1"
}

whole() { # whole WORD: before it is in an arithmetic expression, where bash would run a $(command)
  [[ $1 =~ ^(0|[1-9][0-9]{0,14})$ ]] || fail 2 "${1:0:60}: must be a whole number"
}

running() {
  ! flock -n "$RUN/lock" true
}

state() {
  local ended=exited
  if running; then
    echo running
  elif [ -f "$RUN/exit" ]; then
    [ ! -f "$RUN/stopped" ] || ended=stopped
    echo "$ended $(cat "$RUN/exit")"
  elif [ -f "$RUN/command" ]; then
    echo killed # together with the shell that was to note its exit code: a reboot, or kill -9
  else
    echo none
  fi
}

join() { # Names the hosts to vit_jax, anew for each start: a slice made again has other addresses.
  local hosts first commas
  # HOST,HOST,... or, as it was, NAME:ID:IP,NAME:ID:IP,...
  hosts=${VIT_JAX_WORKERS:-$(metadata worker-network-endpoints)}
  first=${hosts%%,*}
  commas=${hosts//[^,]/}
  [ -n "$commas" ] || return 0
  export JAX_COORDINATOR_ADDRESS=${first##*:}:$PORT
  export JAX_NUM_PROCESSES=$((${#commas} + 1)) JAX_PROCESS_ID=$NUMBER
}

environment() { # from the user's file, whose lines are no commands
  local line
  [ -f "$HOME/vit_jax.env" ] || return 0
  while IFS= read -r line || [ -n "$line" ]; do
    [[ ! $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || export "${line?}"
  done <"$HOME/vit_jax.env"
}

joined() {
  join
  exec "$@"
}

setup() {
  local wanted source
  ! running || fail 2 "a run is going on; stop it before installing"
  [ ! -f "$HOME/vit_jax.env" ] || chmod 600 "$HOME/vit_jax.env"
  wanted="$(cksum <"$HOME/vit_jax.tgz") $*"
  if [ "$(cat "$BASE/installed" 2>/dev/null)" = "$wanted" ]; then
    say "ready, as installed before"
    return
  fi
  rm -rf "$BASE/source" "$BASE/installed"
  mkdir -p "$BASE/source"
  tar -xzf "$HOME/vit_jax.tgz" -C "$BASE/source"
  source=$(find "$BASE/source" -maxdepth 1 -name '*.whl')
  # The images of TPU VMs have Python 3.10, we need 3.11: uv brings its own where there is none.
  # Headers for the decoder of parts of JPEGs are welcome; without them OpenCV decodes whole images.
  {
    timeout 300 sudo apt-get -qq install -y libjpeg-turbo8-dev || true
    timeout 600 python3 -m pip install --quiet --user --upgrade uv &&
      timeout 600 python3 -m uv venv --quiet --clear --python "${2:->=3.11}" "$VENV" &&
      timeout 1800 python3 -m uv pip install --quiet --refresh-package vit_jax --python "$VENV/bin/python" \
        "${source:-$BASE/source}[$1]"
  } >"$BASE/setup.log" 2>&1 ||
    fail 70 "cannot install: $(grep -iE 'error|×' "$BASE/setup.log" | tail -n 1); whole log: ~/vit_jax/setup.log"
  echo "$wanted" >"$BASE/installed"
  say "installed"
}

health() {
  whole "$1"
  join
  timeout 600 "$VENV/bin/python" - "$1" >"$BASE/health.log" 2>&1 <<'PYTHON' ||
import importlib.metadata, os, sys
import jax

if "JAX_COORDINATOR_ADDRESS" in os.environ:
    numbers = (int(os.environ[name]) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], *numbers)
chips = len({tuple(device.coords) for device in jax.devices()})
print(
    f"{jax.process_count()} hosts, {chips} chips ({jax.devices()[0].device_kind}), "
    f"vit_jax {importlib.metadata.version('vit_jax')}, jax {jax.__version__}"
)
if chips != int(sys.argv[1]):
    sys.exit(f"{sys.argv[1]} chips were asked for, and {chips} are here")
PYTHON
    fail 70 "unhealthy: $(tail -n 1 "$BASE/health.log"); whole log: ~/vit_jax/health.log"
  [ "$NUMBER" != 0 ] || say "$(tail -n 1 "$BASE/health.log")"
}

start() {
  [ -x "$VENV/bin/vit_jax" ] || fail 2 "vit_jax is not installed; launch/tpu.sh setup"
  exec 9>"$RUN/lock"
  if ! flock -w 0.5 9; then # a moment, as someone may just be asking for the state
    [ "$(cat "$RUN/command")" = "$*" ] || fail 2 "another run is going on: $(cat "$RUN/command")"
    say "running already"
    return
  fi
  rm -f "$RUN"/{pid,session,exit,stopped} /tmp/libtpu_lockfile # what a killed process leaves locks the chips
  (umask 077 && echo "$*" >"$RUN/command")
  setsid bash "${BASH_SOURCE[0]}" hold "$@" </dev/null >>"$RUN/log" 2>&1 & # and keeps the lock
  say "started"
}

hold() { # the session of a run: it outlives the run by the moment it takes to note its exit code
  local code signalled
  trap 'signalled=1' TERM HUP # Machines that go down tell everyone; the run is told by itself and saves.
  echo $$ >"$RUN/session"
  environment
  join
  hush "$(date -u +%FT%TZ) worker $NUMBER: vit_jax $*"
  PYTHONUNBUFFERED=1 "$VENV/bin/vit_jax" "$@" &
  echo $! >"$RUN/pid"
  while # a trapped signal ends `wait`, but not the run
    code=0 signalled=''
    wait $! || code=$?
    [ -n "$signalled" ]
  do :; done
  echo "$(date -u +%FT%TZ) worker $NUMBER: exit code $code"
  echo "$code" >"$RUN/exit.new"
  mv "$RUN/exit.new" "$RUN/exit"
}

terminate() { # terminate SECONDS: true if the run has ended by then
  while running && [ ! -s "$RUN/pid" ]; do sleep 0.1; done
  kill -TERM "$(cat "$RUN/pid")" 2>/dev/null || true
  flock -w "$1" "$RUN/lock" true
}

clear() {
  whole "$1"
  if running && ! terminate "$1"; then
    kill -KILL -- "-$(cat "$RUN/session")" 2>/dev/null || true
    flock -w 10 "$RUN/lock" true || fail 70 "cannot be killed; delete the slice"
  fi
}

stop() {
  whole "$1"
  running || fail 0 "$(state)"
  touch "$RUN/stopped"
  terminate "$1" || fail 70 "still running after $1 s"
  say "$(state)"
}

status() {
  say "$(state)"
}

poll() {
  local from=$1 size
  whole "$from"
  size=$(stat -c %s "$RUN/log" 2>/dev/null || echo 0)
  if ((from > size)); then from=0; fi # another machine than last time
  if ((size - from > 65536)); then from=$((size - 65536)); fi
  say "$(state), log $size"
  tail -c "+$((from + 1))" "$RUN/log" 2>/dev/null | head -c $((size - from)) || true
}

follow() {
  local beat=${2:-30}
  whole "$1"
  whole "$beat"
  [ -f "$RUN/log" ] || fail 2 "no run yet"
  while sleep "$beat" >/dev/null 2>&1; do echo; done & # a launcher that hears nothing gives up
  beat=$!
  tail -n "$1" -F --pid="$(cat "$RUN/session")" "$RUN/log" 2>/dev/null | sed -u "s/^/worker $NUMBER: /"
  kill "$beat" 2>/dev/null || true
  flock -w 5 "$RUN/lock" true || true # held a moment longer than its session lives
  say "$(state)"
}

mkdir -p "$RUN"
# The launcher says which worker this is where the slice is a group of Compute Engine's VMs.
NUMBER=${VIT_JAX_WORKER:-$(metadata agent-worker-number)} || { echo "${0##*/}: no metadata; is this a TPU VM?"; exit 2; }
"$@"
