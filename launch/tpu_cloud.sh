# shellcheck shell=bash disable=SC2034,SC2153,SC2154
# Sourced by tpu.sh and gke.sh: gcloud, within limits of time, and what its answers mean. What is asked of it stands in
# api_tpu.sh or api_compute.sh.

CHILD='' # process ids of what is running
ANSWER='' # of gcloud, to the last question
KILL_SECONDS=10 # from SIGTERM to SIGKILL, for what does not end

check_switches() { # check_switches SETTING...: those that a variable turns off are empty from here on
  local setting
  for setting; do
    case ${!setting} in
      '' | 1) ;;
      0) printf -v "$setting" '' ;;
      *) fail 2 "VIT_JAX_${setting^^}=$(shown "${!setting}"): must be 1 or 0" ;;
    esac
  done
}

is_here() { # is_here WORD: an option whose path is relative, or below ~, and lies on this machine
  local path=${1#*=}
  case $1 in
    --config.data.root=* | --config.data.exclude=* | --config.init_from=* | --config.objective.teacher=*)
      [[ $path != /* && -e ${path/#'~'/"${HOME:-}"} ]]
      ;;
    *) return 1 ;;
  esac
}

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
  local code=0 depth=$((${depth:-0} + 1)) # one question may lead to another
  MOST_KIB=65536 "$@" >"$SCRATCH/answer$depth" || code=$?
  ANSWER=$(head -c 131072 "$SCRATCH/answer$depth" | tr -d '\0') # whatever it prints: twice what a worker may
  return "$code"
}

end_child() {
  # shellcheck disable=SC2086  # one word for each process
  [ -z "$CHILD" ] || kill $CHILD 2>/dev/null || true
}

limit() { # limit COMMAND [SECONDS]: how long a command of gcloud, or of tpu_worker.sh, may take
  case $1 in
    create | delete) echo $((5 * timeout_seconds)) ;;
    scp | health) echo $((10 * timeout_seconds)) ;; # jax waits up to 10 minutes for all hosts
    setup) echo $((30 * timeout_seconds)) ;;
    clear | stop) echo $(($2 + timeout_seconds)) ;;
    follow) echo 0 ;; # as long as the run; `heard` ends what is silent
    *) echo "$timeout_seconds" ;;
  esac
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
    while [[ " gcloud alpha compute container tpus " == *" $1 "* ]]; do shift; done
    echo "ERROR: gcloud $1 $2 did not answer within $seconds s (--timeout-seconds)" >"$ERRORS"
  fi
  return "$code"
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
  local text
  text=$(complaint)
  text=$(sed -nE -e 's/^ERROR: (\([a-z.-]+\) )?//p; s/^ - //p' <<<"$text" && workers_failed <<<"$text")
  text=$(tr -s '\n' ' ' <<<"${text:-$(complaint | tail -n 1)}")
  text=${text:0:400} # first: bash replaces in long texts for minutes
  text=${text//[[:cntrl:]]/ }
  text=${text% }
  judge
  remedied "$text"
}

remedied() { # remedied TEXT: with the remedy of the last `meaning`
  local remedy=${REMEDY//PROJECT/"$project"}
  case $remedy in
    '->'*) echo "$1; ${remedy#-> }" ;;
    '=>'*) echo "${remedy#=> }" ;;
    *) echo "$1" ;;
  esac
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

give_back() { # true also where there is nothing any more
  drop || { judge && [ "$MEANING" = absent ]; }
}

machines() { # machines GENERATION TOPOLOGY: sets MACHINE (the type of a VM), HOST_CHIPS and VMS (how many)
  case $1 in # https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
    v4) MACHINE=ct4p-hightpu ;;
    v5e) MACHINE=ct5lp-hightpu ;;
    v5p) MACHINE=ct5p-hightpu ;;
    v6e) MACHINE=ct6e-standard ;;
    tpu7x) MACHINE=tpu7x-standard ;;
  esac
  VMS=$((${2//x/*})) HOST_CHIPS=4
  if ((VMS == 1)); then
    HOST_CHIPS=1
  else
    ((VMS % 4 == 0)) || fail 2 "--slice=$slice: hosts have 4 chips, or the only one"
    VMS=$((VMS / 4))
  fi
  MACHINE+=-${HOST_CHIPS}t
}
