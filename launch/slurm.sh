#!/usr/bin/env bash
# The same run on a SLURM cluster of GPUs, with one process for each GPU, or one for each node.
#
#   launch/slurm.sh --nodes=N --gpus-per-node=G [--per-node] [FLAGS OF SBATCH] -- NAME --workdir=DIR [OVERRIDES]
#
# Submits this script with those flags. Two minutes before its time is up, or when SLURM preempts it, the job is
# told, saves, exits with 75 and is queued again, and so goes on until it is done; exit code 70 as well, up to
# ten times in all (VIT_JAX_MAX_RESTARTS). DIR is on storage that all nodes share. --dry-run prints the command.
set -euo pipefail

PATIENCE=120 # seconds for an answer of SLURM

fail() {
  echo "slurm.sh: $*" >&2
  exit 2
}

whole() { # whole NAME=VALUE...: before they are in an arithmetic expression, where bash would run a $(command)
  local one
  for one; do
    [[ ${one#*=} =~ ^(0|[1-9][0-9]{0,8})$ ]] ||
      fail "$(tr -c '[:print:]' ' ' <<<"$one" | head -c 80): must be a whole number, at most 999999999"
  done
}

submit() {
  local flags=() nodes='' gpus='' per_node='' dry_run='' tasks root word command code=0
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
  whole "VIT_JAX_MAX_RESTARTS=${VIT_JAX_MAX_RESTARTS:-10}"
  [[ " $*" == *" --workdir="* ]] || fail "set --workdir=DIR, on storage that all nodes share"
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  tasks=$gpus
  [ -z "$per_node" ] || tasks=1
  command=(sbatch --job-name=vit_jax "--ntasks-per-node=$tasks" --signal=TERM@120 --requeue --open-mode=append
    "${flags[@]}" "${BASH_SOURCE[0]}" "$root" "$@")
  if [ -n "$dry_run" ]; then
    for word in "${command[@]}"; do printf '%q ' "$word"; done
    echo
  else
    command -v sbatch >/dev/null || fail "sbatch is not installed; run this on a login node"
    timeout --kill-after=10 "$PATIENCE" "${command[@]}" || code=$?
    [ "$code" != 124 ] || echo "slurm.sh: sbatch did not answer within $PATIENCE s; look with squeue" >&2
    exit "$((code == 124 ? 70 : code))"
  fi
}

work() { # the job, on its first node: one step of all tasks; what comes of it decides on another turn
  local root=$1 program hosts code=0 restarts=${SLURM_RESTART_COUNT:-0} most=${VIT_JAX_MAX_RESTARTS:-10}
  shift
  whole "SLURM_JOB_ID=$SLURM_JOB_ID" "SLURM_RESTART_COUNT=$restarts" "VIT_JAX_MAX_RESTARTS=$most"
  # SLURM runs a copy of this script, so that the checkout has to be named.
  program=${VIT_JAX:-$(command -v vit_jax || command -v "$root/.venv/bin/vit_jax" || true)}
  [ -n "$program" ] || fail "vit_jax is not on PATH, nor in $root/.venv; VIT_JAX=/path/to/vit_jax names it"
  hosts=$(timeout --kill-after=10 "$PATIENCE" scontrol show hostnames "$SLURM_JOB_NODELIST")
  export JAX_COORDINATOR_ADDRESS=${hosts%%$'\n'*}:$((61000 + SLURM_JOB_ID % 4000))
  export JAX_NUM_PROCESSES=$SLURM_NTASKS PYTHONUNBUFFERED=1
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-} # srun no longer takes it from the job by itself
  [ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK
  echo "$(date -u +%FT%TZ) job $SLURM_JOB_ID, restart $restarts: vit_jax train $*"
  # A task that has saved exits with 75 while others still write: that is no reason to kill them.
  srun --kill-on-bad-exit=0 --wait=600 --label bash "${BASH_SOURCE[0]}" --task "$program" train "$@" || code=$?
  echo "$(date -u +%FT%TZ) job $SLURM_JOB_ID: exit code $code"
  case $code in
    0 | 2 | 71 | 72 | 78) exit "$code" ;;
  esac
  ((restarts < most)) || exit "$code"
  timeout --kill-after=10 "$PATIENCE" scontrol requeue "$SLURM_JOB_ID" || exit "$code"
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

case ${1:-} in
  -h | --help | '') sed -n '2,8s/^# \{0,1\}//p' "$0" ;;
  --task) task "${@:2}" ;;
  *) if [ -n "${SLURM_JOB_ID:-}" ] && [ -d "$1" ]; then work "$@"; else submit "$@"; fi ;;
esac
