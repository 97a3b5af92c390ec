# shellcheck shell=bash disable=SC2154
# Sourced by tpu.sh: its command `supervise`.

MISSES=5 # polls in a row that may fail, each after gcloud's own ten attempts to connect
STRANGE=20 # polls in a row that may see a state we do not know
OFFSET=0 # of the log that is printed already
INSTALLED='' # on this slice, by this supervisor
HOSTS=0 # workers of this slice: those that have answered to `start`; 0: not known

#: launch/tpu.sh supervise --name=NAME --slice=SLICE --workdir=gs://BUCKET/DIR CONFIG_NAME [--config.KEY=VALUE ...]
#:
#: Asks for the slice, waits, installs, runs and follows; after a preemption or a failure worth a retry it does
#: so again, until the run ends with exit code 0, 2, 71, 72 or 78 or by `stop`. Ctrl-C leaves slice and run as they are; the
#: same command takes them up again, also from another machine. What gcloud would refuse again, such as a missing
#: permission or quota, ends it at once with 78; a state that is not known, after 20 polls with 70: nothing is deleted.
#:   --max-restarts=N    in a row, none of which ran for --steady-seconds=1800 (default: 10; with 0 seconds: in all)
#:   --wait-seconds=S    for a slice, before it is given up with 70 (default: 604800, a week)
#:   --backoff-seconds=S before the first restart; doubled for each further one (default: 30)
#:   --poll-seconds=S    between two looks (default: 30)
#:   --then-delete       give the slice back at the end
#:
supervise() {
  local restarts=0 pause
  require name project zone slice
  understand_slice
  require_run
  if [ -n "$dry_run" ]; then
    plan
    return
  fi
  preflight
  trap interrupted INT TERM
  while true; do
    OUTCOME='' RAN=0
    attempt
    case $OUTCOME in
      0) finish 0 'done' ;;
      refused*) abandon 78 "${OUTCOME#refused }" ;;
      strange*) abandon 70 "${OUTCOME#strange }" ;;
      stopped*) finish "${OUTCOME#stopped }" "ended by launch/tpu.sh stop" ;;
      *[!0-9]*) ;;
      *) finish "$OUTCOME" "exit code $OUTCOME, which a restart does not mend; launch/tpu.sh logs $ITSELF" ;;
    esac
    if ((steady_seconds && RAN >= steady_seconds)); then restarts=0; fi
    ((restarts < max_restarts)) ||
      finish 70 "$OUTCOME; no more of it after $restarts restarts in a row (--max-restarts)"
    pause=$((backoff_seconds * (1 << (restarts < 6 ? restarts : 6))))
    ((++restarts))
    say "$OUTCOME; restart $restarts of $max_restarts in $pause s"
    pause_for "$pause"
  done
}

attempt() { # brings the run to its end on the slice, made if need be; OUTCOME: an exit code, or what went wrong
  local began code=0
  await_slice || return 0
  if ! look; then # taken up again, workers that run say so, and the others begin
    # What an attempt before this one has left, such as a process that hangs, would hold the chips; on a slice that
    # is new there is nobody to ask.
    on all clear 60 || true
    [ -n "$INSTALLED" ] || apart setup || code=$?
    [ "$code" != 2 ] || exit 2
    [ "$code" = 0 ] || { trouble setup && return; }
    INSTALLED=1
  fi
  begin || return 0
  began=$SECONDS
  follow
  RAN=$((SECONDS - began))
}

begin() { # starts the run on all workers; false, with OUTCOME, where that failed
  local code=0
  answered on all start "${TRAIN[@]}" || code=$?
  [ -z "$ANSWER" ] || echo "$ANSWER"
  [ "$code" = 0 ] || { trouble start && return 1; }
  # gcloud ends with 0 even where it has reached some of the workers only.
  count_workers "$ANSWER" || true
  ((COUNT >= HOSTS || COUNT == 0)) || { OUTCOME="start: $COUNT of $HOSTS workers answered" && return 1; }
  HOSTS=$COUNT
}

trouble() { # trouble COMMAND: OUTCOME of a command that failed
  OUTCOME="$1 failed: $(reason)"
  if is_permanent; then
    OUTCOME="refused $1: $(reason)"
  elif [ "$MEANING" = usage ]; then
    OUTCOME=2 # the worker has said what is wrong, such as another run that is going on
  fi
}

await_slice() { # until there is a slice that can be used; false, with OUTCOME, if it cannot be had now
  local seen='' misses=0 strange=0 created='' code=0 again=0 began=$SECONDS
  while true; do
    ((SECONDS - began <= wait_seconds)) ||
      { OUTCOME="strange slice $name: none that can be used within $wait_seconds s (--wait-seconds)" && return 1; }
    slice_state
    [ "$STATE $DETAIL" = "$seen" ] || say "slice $name: $STATE${DETAIL:+ ($DETAIL)}"
    seen="$STATE $DETAIL"
    case $STATE:$created in unknown:* | absent:1) ;; *) misses=0 ;; esac
    [ "$STATE" = strange ] || strange=0
    case $STATE in
      ready) return ;;
      queued) INSTALLED='' ;; # what comes out of a queue is new
      refused) OUTCOME="refused $DETAIL" && return 1 ;;
      unknown) ((++misses < MISSES)) || { OUTCOME="gcloud: $DETAIL" && return 1; } ;;
      strange) ((++strange < STRANGE)) || { unknown_state && return 1; } ;;
      lost)
        give_back || { trouble delete && return 1; }
        [ -z "$created" ] || { OUTCOME="the request for a slice ended as $DETAIL" && return 1; }
        ((again++)) || continue # what is deleted is gone at once; or else it takes a while
        pause_for "$(longer "$poll_seconds" $((again - 2)))"
        continue
        ;;
      absent)
        if [ -n "$created" ]; then
          ((++misses < MISSES)) || { OUTCOME="the request for a slice has vanished" && return 1; }
        else
          apart create || code=$?
          [ "$code" != 2 ] || exit 2
          [ "$code" = 0 ] || { trouble create && return 1; }
          created=1 INSTALLED='' HOSTS=0
          continue
        fi
        ;;
    esac
    pause_for "$poll_seconds"
  done
}

longer() { # longer SECONDS N: twice as long for each of N, at most 64 times; SECONDS may be a fraction
  local factor=$((1 << ($2 < 6 ? $2 : 6)))
  if is_whole "$1"; then echo $(($1 * factor)); else echo "$1"; fi
}

unknown_state() {
  OUTCOME="strange slice $name: after $STRANGE polls still a state that is not known: $DETAIL"
}

look() { # one look at worker 0: true if the run goes on there; WORKER is its state
  local first
  WORKER=''
  answered on 0 poll "$OFFSET" || return 1
  # bash takes seconds to cut a pattern out of a long text.
  IFS= read -r first <<<"$ANSWER"
  if [[ $first =~ ^worker\ 0:\ ([a-z0-9\ ]+),\ log\ ([0-9]{1,15})$ ]]; then
    WORKER=${BASH_REMATCH[1]} OFFSET=${BASH_REMATCH[2]}
    meaning worker "$WORKER"
    [ "$MEANING" != unknown ] || WORKER=''
  fi
  if [ -z "$WORKER" ]; then
    echo "ERROR: worker 0 said: $(shown "$ANSWER")" >"$ERRORS"
    return 1
  fi
  if ((${#ANSWER} > ${#first})); then echo "${ANSWER:${#first}+1}"; fi
  [ "$WORKER" = running ]
}

follow() { # prints worker 0's log until the run is over; OUTCOME
  local misses=0 strange=0
  while true; do
    if look; then
      misses=0 strange=0
    elif [ -n "$WORKER" ]; then
      collect
      return
    elif is_gone; then
      return
    elif [ "$STATE" = strange ]; then
      ((++strange < STRANGE)) || { unknown_state && return; }
    elif ((++misses >= MISSES)); then
      give_back || true
      return
    fi
    pause_for "$poll_seconds"
  done
}

is_gone() { # of the slice, after a command on it failed; OUTCOME in either case
  local why
  if is_permanent; then
    trouble ssh
    return
  fi
  why=$(reason)
  slice_state
  case $STATE in
    absent | lost) OUTCOME="slice $name is gone ($STATE${DETAIL:+, $DETAIL})" ;;
    refused) OUTCOME="refused $DETAIL" ;;
    *) OUTCOME="slice $name cannot be reached: $why" && return 1 ;;
  esac
}

collect() { # OUTCOME: the exit code that decides, of all workers'; the others have a few polls to end as well
  local looks
  for ((looks = 0; looks < 10; looks++)); do
    # No answer, or half of one, decides nothing: a worker that is missing in it may have failed.
    if ! answered on all status; then
      ! is_gone || return 0
    elif ! count_workers "$ANSWER"; then
      OUTCOME="workers said: $(shown "$ANSWER")"
    elif ((COUNT < HOSTS)); then
      OUTCOME="$COUNT of $HOSTS workers answered: $(shown "$ANSWER")"
    elif [[ $ANSWER != *running* ]]; then
      OUTCOME='' && break
    else
      OUTCOME=''
    fi
    pause_for "$poll_seconds"
  done
  [ -z "$OUTCOME" ] || return 0
  echo "$ANSWER"
  # shellcheck disable=SC2046  # one word for each worker
  OUTCOME=$(worst $(sed -nE 's/.*(exited|stopped) ([0-9]+)$/\2/p; s/.*(killed|running|none)$/137/p' <<<"$ANSWER"))
  meaning exit "$OUTCOME"
  if [ "$MEANING" = retry ]; then
    # One that was stopped before it could save ends as SIGTERM has it, with 143.
    if [[ $ANSWER == *stopped* ]]; then OUTCOME="stopped $OUTCOME"; else OUTCOME="exit code $OUTCOME"; fi
  fi
}

count_workers() { # count_workers LINES: COUNT of different workers; true if each line is one and says a known state
  local line number said last='' seen=() known=0
  while IFS= read -r line; do
    [[ $line =~ ^worker\ ([0-9]{1,5}):\ (.{1,60})$ ]] || { known=1 && continue; }
    number=$((10#${BASH_REMATCH[1]})) said=${BASH_REMATCH[2]}
    [ "$said" = "$last" ] || meaning worker "$said"
    [ "$MEANING" != unknown ] && [ -z "${seen[number]:-}" ] || known=1
    seen[number]=1 last=$said
  done <<<"$1"
  COUNT=${#seen[@]}
  return "$known"
}

finish() { # finish CODE TEXT
  local tries=1 pause
  say "$2"
  if [ -n "$then_delete" ]; then
    until give_back; do
      ! is_permanent || fail 78 "delete: $(reason)"
      ((tries < MISSES)) || fail 70 "delete: $(reason)"
      pause=$((backoff_seconds * (1 << tries++)))
      say "delete: $(reason); again in $pause s"
      pause_for "$pause"
    done
  else
    remind
  fi
  exit "$1"
}

abandon() { # abandon CODE TEXT: as `finish`, but the slice is left as it is, since nobody knows what became of it
  remind
  fail "$1" "$2"
}

interrupted() {
  end_child
  exec >&3
  say "interrupted; the run goes on, if it had begun, and the same command takes it up again"
  remind
  exit 130
}

remind() {
  say "slice $name costs money until launch/tpu.sh delete $ITSELF --project=$project --zone=$zone"
}

pause_for() { # in the background, as a trap waits for whatever is in the foreground
  sleep "$1" >/dev/null 2>&1 3>&- &
  wait $!
}

plan() { # what supervise would do
  echo "# 0. Before: gcloud auth login; the dataset where all workers read it (data.root=gs://... or a shared" \
    "disk); for --workdir=gs://... a bucket in the slice's region. Supervise does the rest, line by line:"
  echo "# 1. The run is compiled for $slice on this machine; what does not fit its memory ends here (exit code 78)"
  preflight
  echo "# 2. A slice of $CHIPS chips is asked for ($capacity); it costs money from when it is there until it is deleted"
  create
  echo "# 3. Every $poll_seconds s, until the request is ACTIVE and its node READY"
  describe_request
  describe_slice
  echo "# 4. All workers end what is left of an attempt before; on a new slice this fails, as nothing is there yet"
  on all clear 60
  echo "# 5. vit_jax is packed, copied to all workers and installed; together they count their chips: $CHIPS"
  setup
  echo "# 6. The run starts on all workers"
  on all start "${TRAIN[@]}"
  echo "# 7. Every $poll_seconds s, until it ends: the state of worker 0, and the lines its log has got since"
  on 0 poll 0
  echo "# 8. The exit codes of all workers: 0 (done), 2 (wrong settings), 71 (a faulty device), 72 (taken over by another process) and 78 (will fail again) end it; after any" \
    "other again from 3, at most $max_restarts times in a row, after $backoff_seconds s, twice that, ..."
  on all status
  echo "# 9. If the slice is gone (SUSPENDED, FAILED; PREEMPTED, TERMINATED) it is deleted first, and again from 2"
  give_back
  if [ -z "$then_delete" ]; then
    echo "# 10. At the end the slice stays, and costs money: launch/tpu.sh delete $ITSELF, or --then-delete"
  fi
}
