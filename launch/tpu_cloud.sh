# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by tpu.sh: gcloud, within limits of time, and what its answers mean.

CHILD='' # process id of what is running
ANSWER='' # of gcloud, to the last question

quoted() { # quoted WORDS...: as a shell has to be told them
  local word flag line=() quote="'" inside="'\\''"
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+~-]*)
        flag=''
        [[ $word != --[a-z]*=* ]] || flag=${word%%=*}= word=${word#*=}
        word=$flag\'${word//$quote/$inside}\'
        ;;
    esac
    line+=("$word")
  done
  echo "${line[*]}"
}

bounded() { # bounded SECONDS COMMAND...: ended with exit code 124 after so long (0: never), and at once by a signal
  local code=0
  # In the background, as a trap waits for whatever is in the foreground. `timeout` gives the command a process group
  # of its own, so that it ends with all that it has started, or what reads its output would wait for those.
  [ "$BASH_SUBSHELL" = 0 ] || trap 'end_child; exit 130' INT TERM
  timeout --kill-after=10 "$@" 3>&- &
  CHILD=$!
  wait "$CHILD" || code=$?
  CHILD=''
  return "$code"
}

apart() { # apart COMMAND: in a shell of its own, so that a failure there does not end this one
  local code=0
  ("$@") &
  CHILD=$!
  wait "$CHILD" || code=$?
  CHILD=''
  return "$code"
}

answered() { # answered WORDS...: leaves what they print in ANSWER; a signal would wait for the end of a $(command)
  local code=0
  "$@" >"$SCRATCH/answer" || code=$?
  ANSWER=$(<"$SCRATCH/answer")
  return "$code"
}

end_child() {
  [ -z "$CHILD" ] || kill "$CHILD" 2>/dev/null || true
}

cloud() { # cloud WORDS...: one command of gcloud, or what it would be; ERRORS has what it complains of
  local code=0 seconds=${limit:-} began=$SECONDS
  case "$1 $2" in
    *' create' | *' delete') : "${seconds:=$((5 * timeout_seconds))}" ;;
    *' scp') : "${seconds:=$((10 * timeout_seconds))}" ;;
    *) : "${seconds:=$timeout_seconds}" ;;
  esac
  set -- gcloud compute tpus "$@" "--project=$project" "--zone=$zone" --quiet
  if [ -n "$dry_run" ]; then
    quoted "$@"
    return
  fi
  bounded "$seconds" "$@" 2>"$ERRORS" || code=$?
  if ((code && seconds && SECONDS - began >= seconds)); then
    echo "ERROR: gcloud $4 $5 did not answer within $seconds s (--timeout-seconds)" >"$ERRORS"
  fi
  return "$code"
}

queue() { # queue COMMAND [FLAGS]: the request for the slice
  cloud queued-resources "$1" "$name" "${@:2}"
}

on() { # on WORKER WORDS...: tpu_worker.sh there; gcloud and ssh leave the command as it is for one shell
  local flags limit
  case $2 in
    setup) limit=$((30 * timeout_seconds)) ;;
    health) limit=$((10 * timeout_seconds)) ;; # jax waits up to 10 minutes for all hosts
    clear | stop) limit=$(($3 + timeout_seconds)) ;;
    follow) limit=0 ;; # as long as the run
    *) limit=$timeout_seconds ;;
  esac
  read -ra flags <<<"$ssh_flags"
  cloud tpu-vm ssh "$name" "--worker=$1" "--command=$(quoted bash tpu_worker.sh "${@:2}")" "${flags[@]}"
}

reason() { # the cause and the remedy, of all that gcloud wrote
  local text
  text=$(sed -nE -e 's/^ERROR: (\([a-z.-]+\) )?//p' \
    -e 's/^##### .* (worker [0-9]+) failed with (exit status [0-9]+).*/\1: \2/p' "$ERRORS" | tr -s '\n' ' ')
  text=${text:-$(tail -n 1 "$ERRORS") }
  text=${text% }
  case $text in
    *uota*)
      text+='; ask for more (console: IAM & Admin, Quotas, Cloud TPU API)'
      text+=', or try another --zone, --slice or --capacity'
      ;;
    *'active account'* | *'auth login'*) text='not logged in; gcloud auth login' ;;
    *SERVICE_DISABLED* | *'has not been used'*)
      text="Cloud TPU API is off; gcloud services enable tpu.googleapis.com --project=$project"
      ;;
    *PERMISSION_DENIED*) text+='; the account needs the roles TPU Admin and Service Account User' ;;
    *'exit status 127'*) text+='; not set up? launch/tpu.sh setup' ;;
  esac
  echo "$text"
}

# What gcloud says that no retry mends. Workers' own messages are not searched: they go to standard output.
PERMANENT='PERMISSION_DENIED|UNAUTHENTICATED|INVALID_ARGUMENT|SERVICE_DISABLED|has not been used|FAILED_PRECONDITION: .*[Bb]illing'
PERMANENT+='|active account|auth login|[Rr]eauthentication|does not have permission|Permission .* denied|Quota|quota'
PERMANENT+="|unrecognized arguments|Invalid (choice|value)|argument --[a-z_-]+:|[Pp]roject [^ ]* ?(was )?not found"
PERMANENT+="|[Ll]ocation [^ ]* ?(is |was )?(not found|unsupported|invalid)|'projects/[^/']*(/locations/[^/']*)?' was not found"

is_permanent() {
  ! grep -q '^##### ' "$ERRORS" && grep -qE "$PERMANENT" "$ERRORS"
}

is_absent() {
  grep -qE 'NOT_FOUND|not found' "$ERRORS"
}

fail_for() { # fail_for COMMAND [MORE]: with what gcloud said, and 78 where it would say so again
  local code=70
  ! is_permanent || code=78
  fail "$code" "$1: $(reason)${2:-}"
}

missing() { # of a state that could not be read: STATE is absent, refused or unknown
  if is_permanent; then
    STATE=refused DETAIL=$(reason)
  elif is_absent; then
    STATE=$1 DETAIL=$2
  else
    STATE=unknown DETAIL=$(reason)
  fi
}

slice_state() { # sets STATE and DETAIL, Google's words for it; STATE is one of:
  # absent, queued, ready, lost; unknown (gcloud failed), refused (and always will), strange (says what we do not know)
  local node
  if ! answered queue describe '--format=value(state.state)'; then
    missing absent ''
    return
  fi
  DETAIL=$(shown "$ANSWER")
  case $DETAIL in
    ACTIVE) ;;
    SUSPENDING | SUSPENDED | FAILED | DELETING) STATE=lost && return ;;
    CREATING | ACCEPTED | PROVISIONING | WAITING_FOR_RESOURCES) STATE=queued && return ;;
    *) STATE=strange DETAIL="the request is '$DETAIL'" && return ;;
  esac
  # A spot slice that is taken away shows in its node first, and may leave the request ACTIVE for a while.
  if ! answered cloud tpu-vm describe "$name" '--format=value(state,health)'; then
    missing lost 'no node'
    return
  fi
  node=$(shown "$ANSWER")
  DETAIL="ACTIVE, node $node"
  case ${node%% *} in
    READY) STATE=ready ;;
    PREEMPTED | TERMINATED | STOPPING | STOPPED | DELETING) STATE=lost ;;
    CREATING | STARTING | RESTARTING | REIMAGING | REPAIRING) STATE=queued ;;
    *) STATE=strange DETAIL="ACTIVE, its node '$node'" ;;
  esac
}

give_back() {
  queue delete --force
}
