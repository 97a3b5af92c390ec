#!/usr/bin/env bash
# The same run on a SLURM cluster of GPUs, with one process for each GPU, or one for each node.
#
#   launch/slurm.sh --nodes=N --gpus-per-node=G [--per-node] [FLAGS OF SBATCH] -- NAME --workdir=DIR [OVERRIDES]
#
# Submits this script with those flags. Two minutes before its time is up, or when SLURM preempts it, the job is
# told, saves, exits with 75 and is queued again, and so goes on until it is done; exit code 70 as well, up to
# ten times in all (VIT_JAX_MAX_RESTARTS). DIR and the checkout are on storage that all nodes share. --dry-run prints
# the command.
# SLURM has VIT_JAX_TIMEOUT_SECONDS=120 for an answer, and is asked again after VIT_JAX_BACKOFF_SECONDS=30, 60 and 120.
set -euo pipefail

PATIENCE=${VIT_JAX_TIMEOUT_SECONDS:-120} BACKOFF=${VIT_JAX_BACKOFF_SECONDS:-30}
ASKED=4 # times, at most

fail() {
  echo "slurm.sh: $*" >&2
  exit 2
}

ask() { # ask KIND... -- COMMAND...: a command of SLURM, again after a failure of such a kind; 124 if it did not answer
  local tries=0 code answer kinds=' '
  MEANING=''
  while [ "$1" != -- ]; do kinds+="$1 " && shift; done
  while true; do
    code=0
    # Its standard output goes where it belongs, the complaint into `answer`.
    { answer=$(timeout --kill-after=10 "$PATIENCE" "${@:2}" 2>&1 >&3) || code=$?; } 3>&1
    [ -z "$answer" ] || hush "$answer" >&2
    ((code)) || return 0
    [ "$code" != 137 ] || code=124
    meaning slurm "$answer"
    [ "$code" != 124 ] || MEANING=silent
    if [[ $kinds != *" $MEANING "* ]] || ((++tries == ASKED)); then return "$code"; fi
    sleep $((BACKOFF << (tries - 1)))
  done
}

whole() { # whole NAME=VALUE...: before they are in an arithmetic expression, where bash would run a $(command)
  local one
  for one; do
    [[ ${one#*=} =~ ^(0|[1-9][0-9]{0,8})$ ]] ||
      fail "$(tr -c '[:print:]' ' ' <<<"$one" | head -c 80): must be a whole number, at most 999999999"
  done
}

submit() {
  local flags=() nodes='' gpus='' per_node='' dry_run='' tasks root=$ROOT command code=0
  while (($#)) && [ "$1" != -- ]; do
    case $1 in
      --nodes=*) nodes=${1#*=} flags+=("$1") ;;
      --gpus-per-node=*) gpus=${1##*[=:]} flags+=("$1") ;; # G, or TYPE:G
      --per-node) per_node=1 ;;
      --dry-run) dry_run=1 ;;
      *) flags+=("$1") ;;
    esac
    shift
  done
  (($# > 1)) || fail "what is to run comes after --, as in: --nodes=2 --gpus-per-node=8 -- NAME --workdir=DIR"
  shift
  [[ $nodes =~ ^[1-9][0-9]{0,8}$ ]] || fail "set --nodes=N"
  [[ $gpus =~ ^[1-9][0-9]{0,8}$ ]] || fail "set --gpus-per-node=G"
  whole "VIT_JAX_MAX_RESTARTS=${VIT_JAX_MAX_RESTARTS:-10}" "VIT_JAX_TIMEOUT_SECONDS=$PATIENCE" \
    "VIT_JAX_BACKOFF_SECONDS=$BACKOFF"
  [[ " $*" == *" --workdir="[^\ ]* ]] || fail "set --workdir=DIR, on storage that all nodes share"
  require_config "$@"
  tasks=$gpus
  [ -z "$per_node" ] || tasks=1
  command=(sbatch --job-name=vit_jax "--ntasks-per-node=$tasks" --signal=TERM@120 --requeue --open-mode=append
    "${flags[@]}" "${BASH_SOURCE[0]}" "$root" "$@")
  if [ -n "$dry_run" ]; then
    hush "$(printf '%q ' "${command[@]}")"
  else
    command -v sbatch >/dev/null || fail "sbatch is not installed; run this on a login node"
    # Not again where it may have been queued, or there would be two jobs.
    ask retry -- "${command[@]}" || code=$?
    case $code:$MEANING in
      0:*) ;;
      *:silent) echo "slurm.sh: sbatch did not answer within $PATIENCE s; look with squeue" >&2 && code=70 ;;
      *:retry) code=70 ;;
      *:permanent) code=78 ;;
    esac
    exit "$code"
  fi
}

find_program() { # find_program ROOT: prints the path of vit_jax, or fails
  if [ -n "${VIT_JAX:-}" ]; then echo "$VIT_JAX"; else command -v vit_jax || command -v "$1/.venv/bin/vit_jax"; fi
}

require_config() { # so that no job waits in the queue to end by a mistake; unknown where vit_jax is not installed
  local program answer word config=() named='' code=0
  for word; do
    case $word in --workdir=* | --smoke | --profile=* | --accept=*) continue ;; --config=* | [!-]*) named=1 ;; esac
    config+=("$word")
  done
  [ -n "$named" ] || return 0 # a run that goes on has its config in DIR
  program=$(find_program "$ROOT") || return 0
  answer=$(timeout "$PATIENCE" "$program" show "${config[@]}" 2>&1 >/dev/null) || code=$?
  [ "$code" != 2 ] || fail "$(tail -n 1 <<<"$answer" | sed 's/^vit_jax: //')"
}

work() { # the job, on its first node: one step of all tasks; what comes of it decides on another turn
  local root=$1 program hosts code=0 restarts=${SLURM_RESTART_COUNT:-0} most=${VIT_JAX_MAX_RESTARTS:-10}
  shift
  whole "SLURM_JOB_ID=$SLURM_JOB_ID" "SLURM_RESTART_COUNT=$restarts" "VIT_JAX_MAX_RESTARTS=$most" \
    "VIT_JAX_TIMEOUT_SECONDS=$PATIENCE" "VIT_JAX_BACKOFF_SECONDS=$BACKOFF"
  program=$(find_program "$root") ||
    fail "vit_jax is not on PATH, nor in $root/.venv; VIT_JAX=/path/to/vit_jax names it"
  hosts=$(ask retry unknown silent -- scontrol show hostnames "$SLURM_JOB_NODELIST")
  export JAX_COORDINATOR_ADDRESS=${hosts%%$'\n'*}:$((61000 + SLURM_JOB_ID % 4000))
  export JAX_NUM_PROCESSES=$SLURM_NTASKS PYTHONUNBUFFERED=1
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-} # srun no longer takes it from the job by itself
  [ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK
  hush "$(date -u +%FT%TZ) job $SLURM_JOB_ID, restart $restarts: vit_jax train $*"
  # A task that has saved exits with 75 while others still write: that is no reason to kill them.
  # SLURM's copy of this script is on the first node alone.
  srun --kill-on-bad-exit=0 --wait=600 --label bash "$root/launch/slurm.sh" --task "$program" train "$@" || code=$?
  echo "$(date -u +%FT%TZ) job $SLURM_JOB_ID: exit code $code"
  meaning exit "$code"
  if [ "$MEANING" != retry ] || ((restarts >= most)); then exit "$code"; fi
  ask retry unknown silent -- scontrol requeue "$SLURM_JOB_ID" || exit "$code"
}

task() { # one process; jax finds SLURM by itself, and would give the only process of a node its first GPU alone
  whole "SLURM_NTASKS=$SLURM_NTASKS" "SLURM_JOB_NUM_NODES=$SLURM_JOB_NUM_NODES"
  export JAX_PROCESS_ID=$SLURM_PROCID JAX_LOCAL_DEVICE_IDS=$SLURM_LOCALID
  if ((SLURM_NTASKS == SLURM_JOB_NUM_NODES)); then
    whole "SLURM_GPUS_ON_NODE=${SLURM_GPUS_ON_NODE:?}"
    JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
  fi
  exec "$@"
}

# SLURM runs a copy of this script, so that the checkout has to be named.
ROOT=${1:-}
if [ -z "${SLURM_JOB_ID:-}" ] || [ ! -f "$ROOT/launch/answers.sh" ]; then
  ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fi
if [ "${1:-}" != --task ]; then
  # shellcheck source=launch/answers.sh
  source "$ROOT/launch/answers.sh"
  # shellcheck source=launch/secrets.sh
  source "$ROOT/launch/secrets.sh"
fi
case ${1:-} in
  -h | --help | '') sed -n '2,10s/^# \{0,1\}//p' "$0" ;;
  --task) task "${@:2}" ;;
  *) if [ -n "${SLURM_JOB_ID:-}" ] && [ -d "$1" ]; then work "$@"; else submit "$@"; fi ;;
esac
