#!/usr/bin/env bash
# A run on Google Kubernetes Engine, as a JobSet. Without Kubernetes: launch/tpu.sh.
#
#   launch/gke.sh pool --name=NAME --cluster=CLUSTER --zone=ZONE --slice=tpu7x:4x4x4 [--spot]
#   launch/gke.sh job --name=NAME --slice=tpu7x:4x4x4 --image=IMAGE --workdir=gs://BUCKET/DIR [--spot] \
#     CONFIG_NAME [--config.KEY=VALUE ...] | kubectl apply -f -
#
# `pool` makes a node pool of one slice, v4 to tpu7x, and the workload policy that several hosts of tpu7x need.
# --location=L is the cluster's (default: the zone's region), --dry-run prints the gcloud commands. `job` prints a
# manifest: a process on each host. Exit codes 2, 71, 72 and 78 end the job, others restart all processes, at most
# --max-restarts=100 times. IMAGE has `vit_jax` on its PATH, with the extras [tpu,gcs]. Variables such as HF_TOKEN come
# from the Kubernetes secret `vit-jax`, if there is one. Every setting may be a variable: --zone=Z is VIT_JAX_ZONE=Z.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/numbers.sh
source "$ROOT/launch/numbers.sh"
# shellcheck source=launch/secrets.sh
source "$ROOT/launch/secrets.sh"
# shellcheck source=launch/answers.sh
source "$ROOT/launch/answers.sh"
# shellcheck source=launch/tpu_cloud.sh
source "$ROOT/launch/tpu_cloud.sh"

name=${VIT_JAX_NAME:-} project=${VIT_JAX_PROJECT:-} zone=${VIT_JAX_ZONE:-} slice=${VIT_JAX_SLICE:-}
cluster=${VIT_JAX_CLUSTER:-} location=${VIT_JAX_LOCATION:-} image=${VIT_JAX_IMAGE:-} workdir=${VIT_JAX_WORKDIR:-}
max_restarts=${VIT_JAX_MAX_RESTARTS:-100} timeout_seconds=${VIT_JAX_TIMEOUT_SECONDS:-120}
spot=${VIT_JAX_SPOT:-} dry_run=${VIT_JAX_DRY_RUN:-}
SETTINGS=' name project zone slice cluster location image workdir max_restarts timeout_seconds '

fail() { # fail CODE TEXT...
  hush "gke.sh: ${*:2}" >&2
  exit "$1"
}

parse() { # parse WORDS...: settings, and in RUN what is for `vit_jax train`
  local word key
  RUN=()
  for word; do
    key=${word%%=*} key=${key#--} key=${key//-/_}
    case $word in
      -h | --help) explain && exit 0 ;;
      --spot | --dry-run) printf -v "$key" 1 ;;
      --config.*=* | --plugins=?* | --smoke) RUN+=("$word") ;;
      --*=*)
        [[ $SETTINGS == *" $key "* ]] || fail 2 "$word: no such setting; see launch/gke.sh --help"
        printf -v "$key" %s "${word#*=}"
        ;;
      -*) fail 2 "$word: not in the form --KEY=VALUE; see launch/gke.sh --help" ;;
      *) RUN=("$word" "${RUN[@]}") ;;
    esac
  done
}

explain() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

require() { # require SETTING...
  local setting
  for setting; do
    [ -n "${!setting}" ] || fail 2 "no ${setting//_/-}; set --${setting//_/-}=... or VIT_JAX_${setting^^}"
  done
  [[ $name =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
    fail 2 "--name=$(shown "$name"): must be at most 40 small letters, digits and dashes, a letter first"
  is_whole "$max_restarts" || fail 2 "--max-restarts=$(shown "$max_restarts"): must be a whole number"
  { is_whole "$timeout_seconds" && ((timeout_seconds)); } ||
    fail 2 "--timeout-seconds=$(shown "$timeout_seconds"): must be a whole number, at least 1"
}

understand_slice() { # sets ACCELERATOR (GKE's label) and TOPOLOGY, and what `machines` does
  local size='[1-9][0-9]{0,2}'
  [[ $slice =~ ^(v4|v5e|v5p|v6e|tpu7x):($size(x$size){1,2})$ ]] ||
    fail 2 "--slice=$(shown "$slice"): no such slice; in chips, as in v5e:4x4, v5p:2x2x4, v6e:4x4, tpu7x:2x2x1"
  TOPOLOGY=${BASH_REMATCH[2]}
  case ${BASH_REMATCH[1]} in
    v4) ACCELERATOR=tpu-v4-podslice ;;
    v5e) ACCELERATOR=tpu-v5-lite-podslice ;;
    v5p) ACCELERATOR=tpu-v5p-slice ;;
    v6e) ACCELERATOR=tpu-v6e-slice ;;
    tpu7x) ACCELERATOR=tpu7x ;;
  esac
  machines "${BASH_REMATCH[1]}" "$TOPOLOGY"
}

pool() {
  local policy flags=("--machine-type=$MACHINE" "--num-nodes=$VMS" "--node-locations=$zone")
  ((${#RUN[@]} == 0)) || fail 2 "${RUN[0]}: pool takes no config; a pool is named by --name=NAME"
  [ -n "$dry_run" ] || command -v gcloud >/dev/null ||
    fail 2 "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
  ((VMS == 1)) || flags+=("--tpu-topology=$TOPOLOGY") # which Google refuses for a single host
  [ -z "$spot" ] || flags+=(--spot)
  if [ "$ACCELERATOR" = tpu7x ] && ((VMS > 1)); then
    policy="$name-$TOPOLOGY"
    called "$timeout_seconds" gcloud compute resource-policies create workload-policy "$policy" \
      --type=HIGH_THROUGHPUT "--accelerator-topology=$TOPOLOGY" "--region=${zone%-*}" "--project=$project" --quiet ||
      grep -q 'already exists' "$ERRORS" || fail_for 'workload policy'
    flags+=("--placement-policy=$policy")
  fi
  called $((30 * timeout_seconds)) gcloud container node-pools create "$name" "--cluster=$cluster" \
    "--location=${location:-${zone%-*}}" "${flags[@]}" "--project=$project" --quiet || fail_for 'node pool'
}

text() { # text WORDS...: as YAML strings, with commas between them
  local word all=()
  for word; do
    [[ $word != *[[:cntrl:]]* ]] || fail 2 "$(shown "$word"): has a control character"
    word=${word//\\/\\\\}
    word=${word//\$\(/\$\$\(} # or Kubernetes would put a variable there
    all+=("\"${word//\"/\\\"}\"")
  done
  local IFS=,
  echo "${all[*]}"
}

elsewhere() { # elsewhere WORD: what a path of this machine needs there
  hush "gke.sh: $1: lies on this machine; a pod finds it only where the image has it in its working directory" >&2
}

job() {
  local codes picture command word chosen=''
  ((${#RUN[@]})) && [[ ${RUN[0]} != --* ]] || fail 2 "job: which config? see vit_jax list"
  [[ ${RUN[1]:---} == --* ]] || fail 2 "${RUN[1]}: one config is enough"
  [[ $workdir == gs://?*/?* || $workdir == /?* ]] || fail 2 "--workdir=$workdir: must be gs://BUCKET/DIR, or a mounted /DIR"
  [[ $workdir == gs://* ]] ||
    echo "gke.sh: --workdir=$workdir: add a volume that is mounted there; without one a restart begins at step 0" >&2
  for word in "${RUN[@]}"; do
    case $word in
      *.py | *.py:*) [ ! -e "${word%:*}" ] || elsewhere "$word" ;;
      *) ! is_here "$word" || elsewhere "$word" ;;
    esac
  done
  picture=$(text "$image")
  command=$(text vit_jax train "${RUN[@]}" "--workdir=$workdir")
  codes=$(sed -nE 's/^exit +permanent +//p' "$ANSWERS")
  [ -z "$spot" ] || chosen='
                cloud.google.com/gke-spot: "true"
              tolerations:
                - {key: cloud.google.com/gke-spot, operator: Equal, value: "true", effect: NoSchedule}'
  cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $max_restarts
    rules:
      - name: permanent
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: 1
      template:
        spec:
          parallelism: $VMS
          completions: $VMS
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: vit-jax, operator: In, values: [${codes//|/, }]}
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 600
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $ACCELERATOR
                cloud.google.com/gke-tpu-topology: $TOPOLOGY$chosen
              containers:
                - name: vit-jax
                  image: $picture
                  command: [$command]
                  envFrom: [{secretRef: {name: vit-jax, optional: true}}]
                  resources:
                    limits: {google.com/tpu: $HOST_CHIPS}
YAML
}

COMMAND=${1:-}
case $COMMAND in
  pool | job) ;;
  '' | -h | --help | help) explain && exit 0 ;;
  *) fail 2 "$(shown "$COMMAND"): no such command; see launch/gke.sh --help" ;;
esac
parse "${@:2}"
check_switches spot dry_run
if [ "$COMMAND" = pool ]; then
  require name project cluster zone slice
else
  require name slice image workdir
fi
understand_slice
SCRATCH=$(mktemp -d)
ERRORS=$SCRATCH/errors
trap 'rm -rf "$SCRATCH"' EXIT
trap 'end_child; exit 130' INT TERM
"$COMMAND"
