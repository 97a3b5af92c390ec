# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by tpu.sh for --api=compute: a slice as a managed instance group of Compute Engine, v5p, v6e and tpu7x.
#
# Group, instance template and, for several VMs, workload policy bear the name of the slice. The VMs are its workers,
# numbered in the order of their names. In bulk mode the group waits until it can have all its VMs at once.

NAMES=() # of the group's VMs, when it was last looked at

compute() { # compute WORDS...: one command of `gcloud compute`
  called "${seconds:-$timeout_seconds}" gcloud compute "$@" "--project=$project" --quiet
}

group() { # group COMMAND [FLAGS]
  compute instance-groups managed "$1" "$name" "${@:2}" "--zone=$zone"
}

understand() { # understand GENERATION FORM SIZE: sets IMAGE and TOPOLOGY, and what `machines` does
  local rows=1 columns=$CHIPS
  [[ $name =~ ^[a-z]([a-z0-9-]{0,52}[a-z0-9])?$ ]] ||
    fail 2 "--name=$(shown "$name"): must be at most 54 small letters, digits and dashes, a letter first"
  case $1 in # families of ubuntu-os-accelerator-images, as of November 2026
    v5p | v6e) IMAGE=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e ;;
    tpu7x) IMAGE=ubuntu-accel-2404-amd64-tpu-tpu7x ;;
    *) fail 2 "--slice=$slice: Compute Engine has v5p, v6e and tpu7x; --api=tpu" ;;
  esac
  IMAGE=${runtime:-$IMAGE} TOPOLOGY=$3
  case $1$2$3 in
    v6e-*)
      while ((columns > 2 * rows)); do ((rows *= 2, columns /= 2)); done
      (((CHIPS & (CHIPS - 1)) == 0 && CHIPS != 2 && CHIPS <= 256)) || fail 2 "--slice=$slice: no such size; known: v6e-1, -4, -8, ... -256"
      TOPOLOGY=${rows}x$columns
      ;;
    v6e:*x*x* | *-*) fail 2 "--slice=$slice: name it by its chips along each axis, such as v6e:4x4, v5p:2x2x4, tpu7x:2x2x4" ;;
    v6e:*x* | *:*x*x*) ;;
    *) fail 2 "--slice=$slice: chips along two axes for v6e, and three for v5p and tpu7x" ;;
  esac
  machines "$1" "$TOPOLOGY"
}

request() {
  local seconds flags=() region=${zone%-*} policy=()
  seconds=$(limit create)
  case $capacity in
    # A stopped VM stays in the group: it shows that the slice was taken away.
    spot) flags=(--provisioning-model=SPOT --instance-termination-action=STOP) ;;
    flex-start)
      flags=(--provisioning-model=FLEX_START "--max-run-duration=$FLEX_TIME" --instance-termination-action=DELETE)
      flags+=(--reservation-affinity=none)
      ;;
    reserved)
      [[ $create_flags == *--reservation=* ]] ||
        fail 2 "--capacity=reserved: name the reservation; --create-flags=--reservation=NAME"
      flags=(--provisioning-model=RESERVATION_BOUND --reservation-affinity=specific)
      ;;
  esac
  flags+=("--image-family=$IMAGE" --image-project=ubuntu-os-accelerator-images --boot-disk-size=100GB)
  flags+=(--maintenance-policy=TERMINATE --scopes=cloud-platform)
  if ((VMS > 1)); then
    # gcloud takes the path of a policy only, not its name.
    policy=("--workload-policy=projects/$project/regions/$region/resourcePolicies/$name")
    renew "resource-policies delete $name --region=$region" resource-policies create workload-policy "$name" \
      --type=HIGH_THROUGHPUT "--accelerator-topology=$TOPOLOGY" "--region=$region" || return
  fi
  # shellcheck disable=SC2086  # flags for gcloud, as they were typed; of two alike it takes the last
  renew "instance-templates delete $name" instance-templates create "$name" "--machine-type=$MACHINE" \
    "${flags[@]}" $create_flags || return
  group create "--size=$VMS" "--template=$name" "${policy[@]}" --target-size-policy-mode=bulk \
    --default-action-on-vm-failure=do-nothing # for a slice that is broken is made again as a whole
}

renew() { # renew DELETE WORDS...: creates, in place of what an earlier request of this name has left
  compute "${@:2}" && return
  # shellcheck disable=SC2086  # one command
  grep -q 'already exists' "$ERRORS" && compute $1 && compute "${@:2}"
}

describe_request() {
  local why='status.bulkInstanceOperation.lastProgressCheck.error.errors[0]'
  group describe "--format=csv[no-heading](targetSize,status.appliedAcceleratorTopologies[0].state,$why.code,$why.message)"
}

describe_slice() {
  group list-instances --sort-by=instance '--format=csv[no-heading](instance.basename(),currentAction,instanceStatus)'
}

slice_state() { # sets STATE and DETAIL as in api_tpu.sh, and NAMES
  local size topology code why vm action status said last='' seconds=''
  NAMES=()
  if ! answered describe_request; then
    missing absent ''
    return
  fi
  IFS=, read -r size topology code why <<<"$ANSWER"
  is_whole "$size" || { STATE=strange DETAIL="the group is '$(shown "$ANSWER")'" && return; }
  if ! answered describe_slice; then
    missing lost 'no group'
    return
  fi
  STATE=ready DETAIL=''
  while IFS=, read -r vm action status; do
    [ -n "$vm" ] || continue
    NAMES+=("$(shown "$vm")")
    said=$(shown "$action${status:+ $status}")
    [ "$said" != "$last" ] || continue
    last=$said
    meaning vm "$said"
    DETAIL+="${DETAIL:+, }${said/#NONE /}"
    case $MEANING:$STATE in
      lost:*) STATE=lost ;;
      unknown:ready | unknown:queued) STATE=strange ;;
      queued:ready) STATE=queued ;;
    esac
  done <<<"$ANSWER"
  if ((size == 0 || (${#NAMES[@]} && ${#NAMES[@]} < size))); then
    STATE=lost # a group in bulk mode makes all of them at once
  elif ((${#NAMES[@]} == 0)); then
    STATE=queued
  elif [ "$STATE" = ready ] && [ -n "$topology" ]; then
    meaning topology "$topology"
    STATE=${MEANING/unknown/strange}
  fi
  DETAIL="${#NAMES[@]} of $size VMs${DETAIL:+: ${DETAIL:0:200}}${topology:+, topology $(shown "$topology")}"
  if [ "$STATE" = queued ] && [ -n "$code" ]; then # why it still waits
    DETAIL="$(shown "$code"): ${why:0:200}"
    meaning error "$DETAIL"
    [ "$MEANING" != permanent ] || STATE=refused DETAIL=$(remedied "$DETAIL")
  fi
}

drop() { # deletes the group and what was made for it; fails where there is no group
  local seconds code=0 said=''
  seconds=$(limit delete)
  group delete || code=$?
  if [ "$code" != 0 ]; then
    judge
    [ "$MEANING" = absent ] || return "$code"
    said=$(complaint)
  fi
  dropped instance-templates delete "$name" &&
    dropped resource-policies delete "$name" "--region=${zone%-*}" || return
  [ -z "$said" ] || echo "$said" >"$ERRORS"
  return "$code"
}

dropped() {
  compute "$@" || { judge && [ "$MEANING" = absent ]; }
}

on() { # on WORKER WORDS...: tpu_worker.sh there
  local seconds
  seconds=$(limit "${@:2}")
  each "$1" remote "${@:2}"
}

remote() { # remote NUMBER WORDS...
  local flags command
  command="VIT_JAX_WORKER=$1 VIT_JAX_WORKERS=$(IFS=, && echo "${NAMES[*]}") $(quoted bash tpu_worker.sh "${@:2}")"
  read -ra flags <<<"$ssh_flags"
  compute ssh "${NAMES[$1]}" "--command=$command" "${flags[@]}" "--zone=$zone"
}

copy() { # copy FILES...: into the home of all workers
  local seconds
  seconds=$(limit scp)
  each all sent "$@"
}

sent() { # sent NUMBER FILES...; a VM runs for a minute before it takes connections
  local flags
  read -ra flags <<<"$ssh_flags"
  compute scp "${@:2}" "${NAMES[$1]}:" --scp-flag=-oConnectionAttempts=60 "${flags[@]}" "--zone=$zone"
}

each() { # each WORKER COMMAND WORDS...: COMMAND NUMBER WORDS... for one worker or all, at the same time
  local number=0 code worst=0 pids=() own=/dev/null failed=''
  if [ -n "$dry_run" ]; then
    NAMES=("$name-0" ...)
    if [ "$1" = all ]; then
      echo "# on each of the VMs, here the first:"
    else
      number=$1 NAMES[number]=$name-$1
    fi
    "$2" "$number" "${@:3}"
    return
  fi
  if ((${#NAMES[@]} == 0)); then
    slice_state
    case $STATE in refused | unknown | absent) return 1 ;; esac # ERRORS says why
    ((${#NAMES[@]})) || { echo "ERROR: slice $name: $STATE, $DETAIL" >"$ERRORS" && return 1; }
  fi
  [ "$1" = all ] || [ -n "${NAMES[$1]:-}" ] || { echo "ERROR: slice $name has no worker $1" >"$ERRORS" && return 1; }
  [ "$BASH_SUBSHELL" = 0 ] || trap 'end_child; exit 130' INT TERM
  for number in "${!NAMES[@]}"; do
    [ "$1" = all ] || [ "$1" = "$number" ] || continue
    ERRORS=$ERRORS.$number "$2" "$number" "${@:3}" &
    pids[number]=$!
  done
  CHILD=${pids[*]}
  for number in "${!pids[@]}"; do
    code=0
    wait "${pids[number]}" || code=$?
    ((code)) || continue
    worst=$code
    # Of what ssh, or the command there, ends with, tell as gcloud does for the Cloud TPU API; `judge` knows these lines.
    if grep '^ERROR: ' "$ERRORS.$number" | grep -qv 'ssh\] exited with return code'; then
      own=$ERRORS.$number # of gcloud's own errors one is enough
    else
      failed+="##### Command execution on worker $number failed with exit status $code. Continuing."$'\n'
    fi
  done
  CHILD=''
  [ "$worst" = 0 ] || { cat "$own" && printf %s "$failed"; } >"$ERRORS"
  return "$worst"
}
