# shellcheck shell=bash disable=SC2034,SC2153,SC2154
# Sourced by tpu.sh: gcloud, within limits of time, and what its answers mean.

CHILD='' # process id of what is running
ANSWER='' # of gcloud, to the last question
KILL_SECONDS=10 # from SIGTERM to SIGKILL, for what does not end

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
  (
    [ -z "${MOST_KIB:-}" ] || ulimit -f "$MOST_KIB" # of a file: an answer without end must not fill the disk
    exec timeout --kill-after="$KILL_SECONDS" "$@"
  ) 3>&- &
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
  MOST_KIB=65536 "$@" >"$SCRATCH/answer" || code=$?
  ANSWER=$(head -c 131072 "$SCRATCH/answer" | tr -d '\0') # whatever it prints: twice what a worker may
  return "$code"
}

end_child() {
  [ -z "$CHILD" ] || kill "$CHILD" 2>/dev/null || true
}

cloud() { # cloud WORDS...: one command of `gcloud compute tpus`
  local seconds=${limit:-}
  case "$1 $2" in
    *' create' | *' delete') : "${seconds:=$((5 * timeout_seconds))}" ;;
    *' scp') : "${seconds:=$((10 * timeout_seconds))}" ;;
    *) : "${seconds:=$timeout_seconds}" ;;
  esac
  called "$seconds" gcloud compute tpus "$@" "--project=$project" "--zone=$zone" --quiet
}

called() { # called SECONDS gcloud WORDS...: or prints it, for a dry run; ERRORS has what gcloud complains of
  local code=0 seconds=$1 began=$SECONDS
  shift
  if [ -n "$dry_run" ]; then
    hush "$(quoted "$@")"
    return
  fi
  bounded "$seconds" "$@" 2>"$ERRORS" || code=$?
  if ((code && seconds && SECONDS - began >= seconds)); then
    [ "$3" != tpus ] || shift
    echo "ERROR: gcloud $3 $4 did not answer within $seconds s (--timeout-seconds)" >"$ERRORS"
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
    follow) limit=0 ;; # as long as the run; `heard` ends what is silent
    *) limit=$timeout_seconds ;;
  esac
  read -ra flags <<<"$ssh_flags"
  cloud tpu-vm ssh "$name" "--worker=$1" "--command=$(quoted bash tpu_worker.sh "${@:2}")" "${flags[@]}"
}

heard() { # heard SECONDS COMMAND...: prints its lines, and ends it where there is none for so long; empty ones are signs of life
  local line code=124
  exec 4< <(code=0 && "${@:2}" || code=$?; printf '\nexit %s\n' "$code")
  CHILD=$!
  while IFS= read -r -t "$1" -u 4 line; do
    case $line in
      '') ;;
      'exit '*) code=${line#exit } && break ;;
      *) echo "$line" ;;
    esac
  done
  [ "$code" != 124 ] || echo "ERROR: gcloud was silent for $1 s (--timeout-seconds)" >"$ERRORS"
  end_child
  CHILD=''
  exec 4<&-
  return "$code"
}

complaint() { # prints what gcloud wrote: as much of it as anybody would read
  head -c 65536 "$ERRORS" | tr -d '\0'
}

judge() { # MEANING and REMEDY of what gcloud wrote; workers' own messages are not in it: they go to standard output
  local text
  text=$(complaint)
  if [[ $text == '##### '* || $text == *$'\n##### '* ]]; then
    meaning ssh "$text"
  else
    meaning error "$text"
  fi
}

workers_failed() {
  sed -nE 's/^##### .* (worker [0-9]+) failed with (exit status [0-9]+).*/\1: \2/p'
}

reason() { # the cause and the remedy, of all that gcloud wrote
  local text remedy
  text=$(complaint)
  text=$(sed -nE -e 's/^ERROR: (\([a-z.-]+\) )?//p' <<<"$text" && workers_failed <<<"$text")
  text=$(tr -s '\n' ' ' <<<"${text:-$(complaint | tail -n 1)}")
  text=${text:0:400} # first: bash replaces in long texts for minutes
  text=${text//[[:cntrl:]]/ }
  text=${text% }
  judge
  remedy=${REMEDY//PROJECT/"$project"}
  case $remedy in
    '->'*) text+="; ${remedy#-> }" ;;
    '=>'*) text=${remedy#=> } ;;
  esac
  echo "$text"
}

is_permanent() { # of what gcloud wrote: it would say so again
  judge
  [ "$MEANING" = permanent ]
}

fail_for() { # fail_for COMMAND [MORE]: with what gcloud said, and 78 where it would say so again
  local code=70
  ! is_permanent || code=78
  fail "$code" "$1: $(reason)${2:-}"
}

missing() { # of a state that could not be read: STATE is absent, refused or unknown
  judge
  case $MEANING in
    permanent) STATE=refused DETAIL=$(reason) ;;
    absent) STATE=$1 DETAIL=$2 ;;
    *) STATE=unknown DETAIL=$(reason) ;;
  esac
}

slice_state() { # sets STATE and DETAIL, Google's words for it; STATE is one of:
  # absent, queued, ready, lost; unknown (gcloud failed), refused (and always will), strange (says what we do not know)
  local node
  if ! answered queue describe '--format=value(state.state)'; then
    missing absent ''
    return
  fi
  DETAIL=$(shown "$ANSWER")
  meaning request "$DETAIL"
  case $MEANING in
    active) ;;
    unknown) STATE=strange DETAIL="the request is '$DETAIL'" && return ;;
    *) STATE=$MEANING && return ;;
  esac
  # A spot slice that is taken away shows in its node first, and may leave the request ACTIVE for a while.
  if ! answered cloud tpu-vm describe "$name" '--format=value(state,health)'; then
    missing lost 'no node'
    return
  fi
  node=$(shown "$ANSWER")
  meaning node "${node%% *}"
  STATE=$MEANING DETAIL="ACTIVE, node $node"
  [ "$MEANING" != unknown ] || STATE=strange DETAIL="ACTIVE, its node '$node'"
}

give_back() { # true also where there is nothing any more
  queue delete --force || { judge && [ "$MEANING" = absent ]; }
}
