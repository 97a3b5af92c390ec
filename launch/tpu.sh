#!/usr/bin/env bash
#: launch/tpu.sh COMMAND [SETTINGS] [NAME [--config.KEY=VALUE ...]]
#:
#: Trains on a slice of Cloud TPU from this machine, through gcloud.
#:
#:   create      ask for a slice: on demand, spot, flex-start or reserved; the request waits until there is one
#:   setup       install this checkout, or a wheel, on all its workers
#:   run         start a run on all workers; it goes on when this terminal is closed
#:   logs        follow what one worker, or all, print
#:   status      the slice, its workers and the run
#:   stop        end the run: it saves first
#:   supervise   all of it: create, setup, run, and again after each preemption, to the end
#:   delete      give the slice back
#:
#: launch/tpu.sh COMMAND --help explains one. Every setting is a flag or a variable: --zone=Z is VIT_JAX_ZONE=Z.
#: --dry-run prints the gcloud commands instead. Exit codes are those of vit_jax.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/exits.sh
source "$ROOT/launch/exits.sh"
# shellcheck source=launch/numbers.sh
source "$ROOT/launch/numbers.sh"
# shellcheck source=launch/secrets.sh
source "$ROOT/launch/secrets.sh"
# shellcheck source=launch/answers.sh
source "$ROOT/launch/answers.sh"
# shellcheck source=launch/tpu_cloud.sh
source "$ROOT/launch/tpu_cloud.sh"
# shellcheck source=launch/tpu_supervise.sh
source "$ROOT/launch/tpu_supervise.sh"

#:   --name=NAME         of the slice and of the request for it
name=${VIT_JAX_NAME:-}
#:   --project, --zone   where (default: as gcloud is configured)
project=${VIT_JAX_PROJECT:-} zone=${VIT_JAX_ZONE:-}
#:   --slice=SLICE       v3-32, v5e-16, v6e-16 by Google's names, or v3:4x4 in chips, as in `vit_jax preflight`
slice=${VIT_JAX_SLICE:-}
#:   --api=API           tpu: the Cloud TPU API, v2 to v6e; compute: a managed instance group of Compute Engine, v5p,
#:                       v6e and tpu7x (default: compute for tpu7x, else tpu)
api=${VIT_JAX_API:-}
#:   --capacity=KIND     on-demand, spot, flex-start (for at most 7 days) or reserved (default: on-demand)
capacity=${VIT_JAX_CAPACITY:-on-demand} FLEX_TIME=7d
#:   --runtime=VERSION   of the TPU's software, or family of the VMs' image (default: the one for its generation)
runtime=${VIT_JAX_RUNTIME:-}
#:   --workdir=DIR       the run directory: gs://BUCKET/DIR, which the slice's service account may write, or /DIR on
#:                       a disk that all workers have mounted there, such as Filestore
workdir=${VIT_JAX_WORKDIR:-}
#:   --create-flags=...  more flags for gcloud, such as '--service-account=A --network=N --labels=K=V'
create_flags=${VIT_JAX_CREATE_FLAGS:-}
#:   --ssh-flags=...     more flags for its ssh and scp, such as --internal-ip
ssh_flags=${VIT_JAX_SSH_FLAGS:-}
#:   --timeout-seconds=S how long gcloud may take for an answer (default: 120); five times that to make or delete a
#:                       slice, 30 times to install and to compile; `logs` ends when nothing is heard for so long
timeout_seconds=${VIT_JAX_TIMEOUT_SECONDS:-120}
# Settings of single commands, explained by their --help.
wheel=${VIT_JAX_WHEEL:-} python=${VIT_JAX_PYTHON:-} extras=${VIT_JAX_EXTRAS:-} env_file=${VIT_JAX_ENV_FILE:-}
worker=${VIT_JAX_WORKER:-0} lines=${VIT_JAX_LINES:-100} grace=${VIT_JAX_GRACE:-600}
examples=${VIT_JAX_EXAMPLES:-} max_restarts=${VIT_JAX_MAX_RESTARTS:-10}
poll_seconds=${VIT_JAX_POLL_SECONDS:-30} backoff_seconds=${VIT_JAX_BACKOFF_SECONDS:-30}
steady_seconds=${VIT_JAX_STEADY_SECONDS:-1800} wait_seconds=${VIT_JAX_WAIT_SECONDS:-604800}
force=${VIT_JAX_FORCE:-} dry_run=${VIT_JAX_DRY_RUN:-} then_delete=${VIT_JAX_THEN_DELETE:-}

VALUES=' name project zone slice api capacity runtime workdir create_flags ssh_flags wheel python worker lines grace '
VALUES+='extras env_file examples max_restarts poll_seconds backoff_seconds steady_seconds wait_seconds timeout_seconds '
SWITCHES=' force dry_run then_delete '
GIVEN=() # settings given as flags: variables are set for all commands

fail() { # fail CODE TEXT...
  hush "tpu.sh: ${*:2}" >&2
  exit "$1"
}

say() {
  hush "$(date -u +'%F %T')Z $*"
}

# --- Settings -----------------------------------------------------------------------------------------------

parse() { # parse WORDS...: settings, wherever they stand; what is for `vit_jax train` is left in RUN
  local word key
  RUN=()
  while (($#)); do
    word=$1 key=${1%%=*} key=${key#--}
    [[ $key != *_* ]] || key='' # flags have dashes, variables underscores
    key=${key//-/_}
    shift
    case $word in
      -h | --help) explain "$COMMAND" && exit 0 ;;
      --config.*=* | --plugins=?* | --smoke | --profile=* | --accept=?*) RUN+=("$word") ;;
      --config.*)
        (($#)) || fail 2 "$word: needs a value, as in $word=VALUE"
        RUN+=("$word=$1") && shift
        ;;
      --config*) fail 2 "$word: put the file into configs/ and name its config" ;;
      --*)
        if [[ $word != *=* && $SWITCHES == *" $key "* ]]; then
          printf -v "$key" 1
        elif [[ $word == *=* && $VALUES == *" $key "* ]]; then
          printf -v "$key" %s "${word#*=}"
        else
          fail 2 "$word: no such setting, or not in the form --KEY=VALUE; see launch/tpu.sh $COMMAND --help"
        fi
        GIVEN+=("$key")
        ;;
      *.py | *.py:*) fail 2 "$word: no worker has it; put the file into configs/ and name its config" ;;
      *)
        ((${#RUN[@]} == 0)) || [[ ${RUN[0]} == --* ]] || fail 2 "$word: one config is enough"
        RUN=("$word" "${RUN[@]}")
        ;;
    esac
  done
}

check_use() { # what a command would not read: a name beside it, which names no slice, and settings of other commands
  local key readers
  case $COMMAND in
    run | supervise) ;;
    *) ((${#RUN[@]} == 0)) || fail 2 "${RUN[0]}: $COMMAND takes no config; a slice is named by --name=NAME" ;;
  esac
  for key in "${GIVEN[@]}"; do
    case $key in
      wheel | python | extras | env_file) readers=' setup supervise ' ;;
      worker | lines) readers=' logs ' ;;
      grace) readers=' stop ' ;;
      examples) readers=' run supervise ' ;;
      force) readers=' run supervise delete ' ;;
      timeout_seconds) continue ;;
      max_restarts | *_seconds | then_delete) readers=' supervise ' ;;
      *) continue ;;
    esac
    [[ $readers == *" $COMMAND "* ]] || fail 2 "--${key//_/-}: $COMMAND does not read it; for:${readers% }"
  done
}

check_numbers() { # before any of them is in an arithmetic expression
  local setting value
  for setting in max_restarts backoff_seconds steady_seconds wait_seconds timeout_seconds grace lines examples; do
    value=${!setting}
    [[ $setting == examples && -z $value ]] || is_whole "$value" ||
      fail 2 "--${setting//_/-}=$(shown "$value"): must be a whole number, at most 999999999"
  done
  [ "$timeout_seconds" != 0 ] || fail 2 "--timeout-seconds=0: must be at least 1"
  [[ $poll_seconds =~ ^[0-9]{1,9}(\.[0-9]{1,9})?$ ]] ||
    fail 2 "--poll-seconds=$(shown "$poll_seconds"): must be a number of seconds"
  [ "$worker" = all ] || is_whole "$worker" || fail 2 "--worker=$(shown "$worker"): must be a number, or all"
}

explain() { # explain COMMAND: prints its `#:` lines in these files; without COMMAND, those of all
  local text="$ROOT/launch/tpu.sh"
  if [ -z "${1:-}" ]; then
    sed -n '2,/^set /s/^#: \{0,1\}//p' "$text"
  else
    cat "$text" "$ROOT/launch/tpu_supervise.sh" | sed -n "/^#: launch\/tpu.sh $1 /,/^[^#]/s/^#: \{0,1\}//p"
  fi
  printf '\nFor every command:\n'
  sed -n '/^source/,/^VALUES/s/^#: //p' "$text"
}

require() { # require SETTING...: looks up what gcloud knows itself, and misses what is missing
  local setting property
  [ -n "$dry_run" ] || command -v gcloud >/dev/null ||
    fail 2 "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
  for setting; do
    case $setting in project) property=project ;; zone) property=compute/zone ;; *) property='' ;; esac
    if [ -z "${!setting}" ] && [ -n "$property" ] && command -v gcloud >/dev/null; then
      printf -v "$setting" %s "$(bounded "$timeout_seconds" gcloud config get-value "$property" 2>/dev/null || true)"
    fi
    [ -n "${!setting}" ] || fail 2 "no $setting; set --$setting=... or VIT_JAX_${setting^^}"
  done
}

choose_api() {
  if [ -z "$api" ]; then
    case $slice in tpu7x*) api=compute ;; *) api=tpu ;; esac
  fi
  case $api in
    tpu)
      # shellcheck source=launch/api_tpu.sh
      source "$ROOT/launch/api_tpu.sh"
      ;;
    compute)
      # shellcheck source=launch/api_compute.sh
      source "$ROOT/launch/api_compute.sh"
      ;;
    *) fail 2 "--api=$(shown "$api"): must be tpu or compute" ;;
  esac
  ITSELF="--name=$name" # for the next command
  [ "$api" = tpu ] || ITSELF+=" --api=$api"
}

understand_slice() { # sets CHIPS, and what the API has to know of --slice
  local generation form size
  [[ $slice =~ ^(v[2-6][a-z]*|tpu7x)(-|:)([1-9][0-9]{0,4}(x[1-9][0-9]{0,2}){0,2})$ ]] ||
    fail 2 "--slice=$(shown "$slice"): no such slice; examples: v3-32, v5e-16, v5p-128, v6e-16, v3:4x4, tpu7x:2x2x1"
  generation=${BASH_REMATCH[1]/litepod/e} form=${BASH_REMATCH[2]} size=${BASH_REMATCH[3]}
  slice=$generation$form$size CHIPS=$((${size//x/*}))
  understand "$generation" "$form" "$size"
}

require_run() {
  local word
  ((${#RUN[@]})) && [[ ${RUN[0]} != --* ]] || fail 2 "$COMMAND: which config? see vit_jax list"
  case $workdir in
    /?* | gs://?*/?*) ;;
    '') fail 2 "no workdir; set --workdir=gs://BUCKET/DIR or VIT_JAX_WORKDIR" ;;
    *) fail 2 "--workdir=$workdir: must be gs://BUCKET/DIR, or /DIR on a disk that all workers have mounted there" ;;
  esac
  for word in "${RUN[@]}"; do
    ! is_here "$word" ||
      fail 2 "$word: lies on this machine; workers read gs://BUCKET/DIR, or /DIR on a disk that all have mounted there"
  done
  TRAIN=(train "${RUN[@]}" "--workdir=$workdir")
  CONFIG=() # what other commands than `train` take of it
  for word in "${RUN[@]}"; do
    case $word in --smoke | --profile=* | --accept=*) ;; *) CONFIG+=("$word") ;; esac
  done
  [ -z "$dry_run" ] || require_config
}

require_config() { # for a dry run, which preflight does not precede; where vit_jax is not installed, nothing is known
  local program answer
  program=$(installed) || return 0
  answer=$(bounded "$timeout_seconds" "$program" show "${CONFIG[@]}" 2>&1 >/dev/null) ||
    fail 2 "$COMMAND: $(tail -n 1 <<<"$answer" | sed 's/^vit_jax: //')"
}

installed() { # prints the path of vit_jax, or fails
  command -v vit_jax || command -v "$ROOT/.venv/bin/vit_jax"
}

# --- Commands --------------------------------------------------------------------------------------------------

#: launch/tpu.sh create --name=NAME --slice=SLICE [--capacity=spot]
#:
#: Asks for a slice and returns; `status` tells when it is there. It costs money from then until `delete`.
#:
create() {
  require name project zone slice
  understand_slice
  case $capacity in
    on-demand | spot | flex-start | reserved) ;;
    *) fail 2 "--capacity=$capacity: must be on-demand, spot, flex-start or reserved" ;;
  esac
  request || fail_for create
}

#: launch/tpu.sh setup --name=NAME --slice=SLICE
#:
#: Copies this checkout to all workers, installs it with its [tpu,gcs] extras, and has all hosts together count
#: their chips. Given again it installs what has changed.
#:   --wheel=FILE.whl    install this wheel instead
#:   --python=VERSION    which Python the workers use (default: any from 3.11; uv gets one where there is none)
#:   --extras=NAME,...   more extras to install, such as wandb
#:   --env-file=FILE     variables of the runs on all workers, such as HF_TOKEN: a line KEY=VALUE for each
#:
setup() {
  local archive=$SCRATCH/vit_jax.tgz variables=() from=$ROOT files=(pyproject.toml setup.py README.md LICENSE vit_jax configs)
  require name project zone slice
  understand_slice
  [[ ,$extras =~ ^(,[a-z0-9_-]*)+$ ]] || fail 2 "--extras=$(shown "$extras"): must be names such as wandb,hf"
  if [ -n "$wheel" ]; then
    [ -f "$wheel" ] || fail 2 "--wheel=$wheel: no such file"
    [[ $wheel == *.whl ]] || fail 2 "--wheel=$wheel: no wheel (.whl); pip wheel --no-deps . builds one"
    from=$(dirname "$wheel") files=("$(basename "$wheel")")
  fi
  if [ -n "$dry_run" ]; then
    echo "$(quoted tar -cf - --exclude=__pycache__ --exclude='*.so' -C "$from" "${files[@]}") | gzip -n >$archive"
  else
    tar -cf - --exclude=__pycache__ --exclude='*.so' -C "$from" "${files[@]}" | gzip -n >"$archive"
  fi
  if [ -n "$env_file" ]; then
    check_variables
    variables=("$SCRATCH/vit_jax.env")
    if [ -n "$dry_run" ]; then
      quoted cp "$env_file" "${variables[0]}"
    else
      (umask 077 && cp "$env_file" "${variables[0]}")
    fi
  fi
  copy "$archive" "${variables[@]}" "$ROOT"/launch/{tpu_worker,secrets}.sh || fail_for setup
  on all setup "tpu,gcs${extras:+,$extras}" ${python:+"$python"} || fail_for setup
  on all health "$CHIPS" || fail_for setup
}

check_variables() { # of --env-file, which workers do not run as commands; names no value, which may be secret
  local line number=0 form='^(#.*|[A-Za-z_][A-Za-z0-9_]*=([^"'\''].*)?)?$'
  [ -f "$env_file" ] || fail 2 "--env-file=$env_file: no such file"
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    [[ $line =~ $form && $line != *[[:cntrl:]]* ]] ||
      fail 2 "--env-file=$env_file: line $number: must be KEY=VALUE, without export or quotes"
  done <"$env_file"
}

#: launch/tpu.sh run --name=NAME --slice=SLICE --workdir=gs://BUCKET/DIR CONFIG_NAME [--config.KEY=VALUE ...]
#:
#: Compiles the run for the slice (`vit_jax preflight`) and refuses what does not fit its memory; then starts
#: `vit_jax train` on all workers. The same command resumes a run that has ended.
#:   --force             do not ask preflight
#:   --examples=N        for preflight, of a dataset whose size the config does not know
#:
run() {
  require name project zone slice
  understand_slice
  require_run
  preflight
  on all start "${TRAIN[@]}" || fail_for run '; the same command starts the workers that are missing'
  [ -n "$dry_run" ] || say "started; follow it with launch/tpu.sh logs $ITSELF"
}

preflight() {
  local program words answer memory code=0 most=$((30 * timeout_seconds))
  [ -z "$force" ] || return 0
  program=$(installed || true)
  words=(preflight "${CONFIG[@]}" "--topology=$slice" ${examples:+"--examples=$examples"})
  if [ -n "$dry_run" ]; then
    hush "$(quoted vit_jax "${words[@]}")"
    return
  fi
  [ -n "$program" ] || fail 2 "preflight: vit_jax is not installed here; pip install '.[tpu]', or --force"
  say "compiling ${RUN[0]} for $slice; minutes for large models, --force skips it"
  answer=$(bounded "$most" "$program" "${words[@]}" 2>&1) || code=$?
  memory=$(sed -nE 's/^memory per device +(.*[^ ]) *$/\1/p' <<<"$answer")
  case $code in
    0) say "preflight: $memory" ;;
    124 | 137) fail 70 "preflight: not compiled within $most s (30 x --timeout-seconds); --force skips it" ;;
    78) fail 78 "preflight: $memory; vit_jax preflight ${RUN[0]} --topology=$slice --fit finds settings; or --force" ;;
    *) fail 2 "preflight: $(tail -n 1 <<<"$answer" | sed 's/^vit_jax: //'); --force skips preflight" ;;
  esac
}

#: launch/tpu.sh logs --name=NAME [--worker=N|all]
#:
#: Prints the last lines of the log and what comes, until the run ends. Ctrl-C ends only the printing.
#:   --worker=N          of this worker, or of all (default: 0)
#:   --lines=N           how many lines that are there already (default: 100)
#:
logs() {
  require name project zone
  local beat=$((timeout_seconds / 4)) # seconds from one sign of life to the next
  if [ -n "$dry_run" ]; then
    on "$worker" follow "$lines" "$beat"
  else
    heard "$timeout_seconds" on "$worker" follow "$lines" "$beat" || fail_for logs
  fi
}

#: launch/tpu.sh status --name=NAME
#:
#: One line for the slice and one for each worker: none, running, exited CODE, stopped CODE, or killed.
#:
status() {
  require name project zone
  if [ -n "$dry_run" ]; then
    describe_request
    describe_slice
    on all status
    return
  fi
  slice_state
  hush "slice $name: $STATE${DETAIL:+ ($DETAIL)}"
  [ "$STATE" != refused ] || exit 78
  [ "$STATE" != ready ] || on all status || fail_for status
}

#: launch/tpu.sh stop --name=NAME
#:
#: SIGTERM to the run on all workers: they save at the same step and exit with 75. A supervisor ends with it.
#:   --grace=SECONDS     how long to wait for the save (default: 600)
#:
stop() {
  require name project zone
  on all stop "$grace" || fail_for stop
}

#: launch/tpu.sh delete --name=NAME
#:
#: Deletes the slice and the request for it, in whatever state they are: a suspended one still counts towards the
#: quota. Refuses while a run is going on.
#:   --force             even then; what it has not saved is lost
#:
delete() {
  require name project zone
  if [ -z "$force$dry_run" ] && answered on 0 status && [[ $ANSWER == *running ]]; then
    fail 2 "delete: a run is going on; launch/tpu.sh stop $ITSELF, or --force"
  fi
  drop || fail_for delete
}

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || fail 2 "needs bash 4.4 or newer; on macOS: brew install bash"
command -v timeout >/dev/null || fail 2 "timeout is not installed; on macOS: brew install coreutils"
COMMAND=${1:-}
case $COMMAND in
  create | setup | run | logs | status | stop | supervise | delete) ;;
  '' | -h | --help | help) explain '' && exit 0 ;;
  *) fail 2 "$COMMAND: no such command; see launch/tpu.sh --help" ;;
esac
parse "${@:2}"
check_switches force dry_run then_delete
check_numbers
check_use
choose_api
SCRATCH=.
if [ -z "$dry_run" ]; then
  SCRATCH=$(mktemp -d)
  trap 'rm -rf "$SCRATCH"' EXIT
fi
trap 'end_child; exit 130' INT TERM
ERRORS=$SCRATCH/errors
exec 3>&1 # for traps, which run amid redirections; not for what is started, which may outlive this
"$COMMAND"
