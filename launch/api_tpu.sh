# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by tpu.sh for --api=tpu: a slice through the Cloud TPU API, v2 to v6e.

cloud() { # cloud WORDS...: one command of `gcloud compute tpus`
  called "${seconds:-$(limit "$2")}" gcloud ${track:+"$track"} compute tpus "$@" \
    "--project=$project" "--zone=$zone" --quiet
}

queue() { # queue COMMAND [FLAGS]: the request for the slice
  cloud queued-resources "$1" "$name" "${@:2}"
}

understand() { # understand GENERATION FORM SIZE: sets KIND (gcloud's flags), RUNTIME and CHIPS
  case $1 in # https://cloud.google.com/tpu/docs/runtimes, as of November 2026
    v2 | v3 | v4) RUNTIME=tpu-ubuntu2204-base ;;
    v5e) RUNTIME=v2-alpha-tpuv5-lite ;;
    v5p) RUNTIME=v2-alpha-tpuv5 ;;
    v6e) RUNTIME=v2-alpha-tpuv6e ;;
    tpu7x) fail 2 "--slice=$slice: the Cloud TPU API has none; --api=compute has, and launch/gke.sh" ;;
    *) fail 2 "--slice=$slice: no such generation; known: v2 v3 v4 v5e v5p v6e tpu7x" ;;
  esac
  RUNTIME=${runtime:-$RUNTIME}
  case $1-$CHIPS in
    v[56]e-1 | v[56]e-4 | v[56]e-8 | v[56]e-16 | v[56]e-32 | v[56]e-64 | v[56]e-128 | v[56]e-256) ;;
    v[56]e-*) fail 2 "--slice=$slice: no such size; known: $1-1, -4, -8, -16, -32, -64, -128, -256" ;;
  esac
  case $1$2 in # the request has the number of chips alone, and Google one shape for each
    v[56]e:)
      if [[ ! $3 =~ ^([0-9]+)x([0-9]+)$ ]] ||
        ((BASH_REMATCH[1] > BASH_REMATCH[2] || BASH_REMATCH[2] > 2 * BASH_REMATCH[1])); then
        fail 2 "--slice=$slice: no such shape; name it by its size, $1-$CHIPS"
      fi
      ;;
  esac
  case $1$2$3 in # Google counts cores up to v5p, and takes shapes up to v4
    v[234]:*) KIND=("--type=$1" "--topology=$3") ;;
    v5e?*) KIND=("--accelerator-type=v5litepod-$CHIPS") ;;
    v6e?*) KIND=("--accelerator-type=v6e-$CHIPS") ;;
    *x*) fail 2 "--slice=$slice: name it by its size, such as $1-16" ;;
    *) KIND=("--accelerator-type=$1-$3") CHIPS=$(($3 / 2)) ;;
  esac
}

request() {
  local flags track=''
  read -ra flags <<<"$create_flags"
  case $capacity in
    spot | reserved) flags+=("--$capacity") ;;
    flex-start) # in gcloud's alpha release only
      track=alpha flags=(--provisioning-model=flex-start "--max-run-duration=$FLEX_TIME" "${flags[@]}")
      ;;
  esac
  queue create "--node-id=$name" "${KIND[@]}" "--runtime-version=$RUNTIME" "${flags[@]}"
}

describe_request() {
  queue describe '--format=value(state.state)'
}

describe_slice() {
  cloud tpu-vm describe "$name" '--format=value(state,health)'
}

slice_state() { # sets STATE and DETAIL, Google's words for it; STATE is one of:
  # absent, queued, ready, lost; unknown (gcloud failed), refused (and always will), strange (says what we do not know)
  local node
  if ! answered describe_request; then
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
  if ! answered describe_slice; then
    missing lost 'no node'
    return
  fi
  node=$(shown "$ANSWER")
  meaning node "${node%% *}"
  STATE=$MEANING DETAIL="ACTIVE, node $node"
  [ "$MEANING" != unknown ] || STATE=strange DETAIL="ACTIVE, its node '$node'"
}

drop() { # deletes the slice and the request for it; fails where there is none
  queue delete --force
}

on() { # on WORKER WORDS...: tpu_worker.sh there; gcloud and ssh leave the command as it is for one shell
  local flags seconds
  seconds=$(limit "${@:2}")
  read -ra flags <<<"$ssh_flags"
  cloud tpu-vm ssh "$name" "--worker=$1" "--command=$(quoted bash tpu_worker.sh "${@:2}")" "${flags[@]}"
}

copy() { # copy FILES...: into the home of all workers
  local flags
  read -ra flags <<<"$ssh_flags"
  cloud tpu-vm scp "$@" "$name:" --worker=all "${flags[@]}"
}
