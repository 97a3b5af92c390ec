# shellcheck shell=bash disable=SC2154
# Sourced by tpu.sh: its verb `supervise`.

MISSES=5 # polls in a row that may fail, each after gcloud's own ten attempts to connect
OFFSET=0 # of the log that is printed already
INSTALLED='' # on this slice, by this supervisor

#: launch/tpu.sh supervise --name=NAME --slice=SLICE --workdir=gs://BUCKET/DIR CONFIG_NAME [--config.KEY=VALUE ...]
#:
#: Asks for the slice, waits, installs, runs and follows; after a preemption or a failure worth a retry it does
#: so again, until the run ends with exit code 0, 2 or 78 or by `stop`. Ctrl-C leaves slice and run as they are; the
#: same command takes them up again, also from another machine.
#:   --max_restarts=N    in a row, none of which ran for --steady_seconds=1800 (default: 10)
#:   --backoff_seconds=S before the first restart; doubled for each further one (default: 30)
#:   --poll_seconds=S    between two looks (default: 30)
#:   --then_delete       give the slice back at the end
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
      2 | 78) finish "$OUTCOME" "exit code $OUTCOME, which a restart does not mend; launch/tpu.sh logs --name=$name" ;;
      stopped*) finish "${OUTCOME#stopped }" "ended by launch/tpu.sh stop" ;;
    esac
    if ((RAN >= steady_seconds)); then restarts=0; fi
    ((restarts < max_restarts)) ||
      finish 70 "$OUTCOME; no more of it after $restarts restarts in a row (--max_restarts)"
    pause=$((backoff_seconds * (1 << (restarts < 6 ? restarts : 6))))
    ((++restarts))
    say "$OUTCOME; restart $restarts of $max_restarts in $pause s"
    pause_for "$pause"
  done
}

attempt() { # brings the run to its end on the slice, made if need be; OUTCOME: an exit code, or what went wrong
  local began
  await_slice || return 0
  if look; then # taken up again: workers that run say so, the others begin
    on all start "${TRAIN[@]}" || { OUTCOME="2" && return; }
  else
    # What an attempt before this one has left, such as a process that hangs, would hold the chips; on a slice that
    # is new there is nobody to ask.
    on all clear 60 || true
    [ -n "$INSTALLED" ] || (setup) || { OUTCOME="setup failed" && return; }
    INSTALLED=1
    on all start "${TRAIN[@]}" || { OUTCOME="start failed: $(reason)" && return; }
  fi
  began=$SECONDS
  follow
  RAN=$((SECONDS - began))
}

await_slice() { # until there is a slice that can be used; false, with OUTCOME, if it cannot be had now
  local seen='' misses=0 created=''
  while true; do
    slice_state
    [ "$STATE" != unknown ] || ((++misses < MISSES)) || { OUTCOME="gcloud: $DETAIL" && return 1; }
    [ "$STATE $DETAIL" = "$seen" ] || say "slice $name: $STATE${DETAIL:+ ($DETAIL)}"
    seen="$STATE $DETAIL"
    case $STATE in
      ready) return ;;
      lost)
        give_back || { OUTCOME="delete failed: $(reason)" && return 1; }
        [ -z "$created" ] || { OUTCOME="the request for a slice ended as $DETAIL" && return 1; }
        ;;
      absent)
        if ((restarts)); then
          (create) || { OUTCOME='create failed' && return 1; }
        else
          create
        fi
        created=1 INSTALLED=''
        ;;
      *) pause_for "$poll_seconds" ;;
    esac
  done
}

look() { # one look at worker 0: true if the run goes on there; WORKER is its state
  local answer
  answer=$(on 0 poll "$OFFSET") || { WORKER='' && return 1; }
  WORKER=${answer%%$'\n'*}
  OFFSET=${WORKER##* }
  WORKER=${WORKER#*: } WORKER=${WORKER%, log*}
  if [[ $answer == *$'\n'* ]]; then echo "${answer#*$'\n'}"; fi
  [ "$WORKER" = running ]
}

follow() { # prints worker 0's log until the run is over; OUTCOME
  local misses=0
  while true; do
    if look; then
      misses=0
    elif [ -n "$WORKER" ]; then
      collect
      return
    elif is_gone; then
      return
    elif ((++misses >= MISSES)); then
      give_back || true
      return
    fi
    pause_for "$poll_seconds"
  done
}

is_gone() { # of the slice, after a command on it failed; OUTCOME in either case
  local why
  why=$(reason)
  slice_state
  case $STATE in
    absent | lost) OUTCOME="slice $name is gone ($STATE${DETAIL:+, $DETAIL})" ;;
    *) OUTCOME="slice $name cannot be reached: $why" && return 1 ;;
  esac
}

collect() { # OUTCOME: the exit code that decides, of all workers'; the others have a few polls to end as well
  local answer looks
  for ((looks = 0; looks < 10; looks++)); do
    if ! answer=$(on all status); then
      is_gone || true
      return
    fi
    [[ $answer == *running* ]] || break
    pause_for "$poll_seconds"
  done
  echo "$answer"
  # shellcheck disable=SC2046  # one word for each worker
  OUTCOME=$(worst $(sed -nE 's/.*(exited|stopped) ([0-9]+)$/\2/p; s/.*(killed|running|none)$/137/p' <<<"$answer"))
  case $OUTCOME:$answer in
    75:*stopped*) OUTCOME="stopped 75" ;;
    0:* | 2:* | 78:*) ;;
    *) OUTCOME="exit code $OUTCOME" ;;
  esac
}

finish() { # finish CODE TEXT
  say "$2"
  if [ -n "$then_delete" ]; then
    give_back || fail 70 "delete: $(reason)"
  else
    remind
  fi
  exit "$1"
}

interrupted() {
  say "interrupted; the run goes on, if it had begun, and the same command takes it up again"
  remind
  exit 130
}

remind() {
  say "slice $name costs money until launch/tpu.sh delete --name=$name --project=$project --zone=$zone"
}

pause_for() { # in the background, as a trap waits for whatever is in the foreground
  sleep "$1" >/dev/null 2>&1 &
  wait $!
}

plan() { # what supervise would do
  echo "# 0. Before: gcloud auth login; the data set where all workers read it (data.root=gs://... or a shared" \
    "disk); for --workdir=gs://... a bucket in the slice's region. Supervise does the rest, line by line:"
  echo "# 1. The run is compiled for $slice on this machine; what does not fit its memory ends here (exit code 78)"
  preflight
  echo "# 2. A slice of $CHIPS chips is asked for ($capacity); it costs money from when it is there until it is deleted"
  create
  echo "# 3. Every $poll_seconds s, until the request is ACTIVE and its node READY"
  queue describe '--format=value(state.state)'
  cloud tpu-vm describe "$name" '--format=value(state,health)'
  echo "# 4. All workers end what is left of an attempt before; on a new slice this fails, as nothing is there yet"
  on all clear 60
  echo "# 5. vit_jax is packed, copied to all workers and installed; together they count their chips: $CHIPS"
  setup
  echo "# 6. The run starts on all workers"
  on all start "${TRAIN[@]}"
  echo "# 7. Every $poll_seconds s, until it ends: the state of worker 0, and the lines its log has got since"
  on 0 poll 0
  echo "# 8. The exit codes of all workers: 0 (done), 2 (wrong settings) and 78 (will fail again) end it; after any" \
    "other again from 3, at most $max_restarts times in a row, after $backoff_seconds s, twice that, ..."
  on all status
  echo "# 9. If the slice is gone (SUSPENDED, FAILED; PREEMPTED, TERMINATED) it is deleted first, and again from 2"
  give_back
  if [ -z "$then_delete" ]; then
    echo "# 10. At the end the slice stays, and costs money: launch/tpu.sh delete --name=$name, or --then_delete"
  fi
}
