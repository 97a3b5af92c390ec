#!/usr/bin/env bash
# One command on a fresh machine: sets up .venv, trains the embedded default, shows what it learned, and
# goes through the paper's protocol: pre-train on half the classes, transfer to all at more pixels.
# Last, a model of photographs that comes with the package names a cat, and shows where it looks.
#
#   launch/local.sh [WORKDIR] [--config.KEY=VALUE ...]      PYTHON=python3.13 launch/local.sh
#
# WORKDIR (default runs/digits in the checkout) is resumed if it holds an unfinished run; the options
# are for it. The transfer's runs are in home/ beside it. With SEED=1 (default 0) its pre-training
# has another seed; give another WORKDIR too.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

WORKDIR=$ROOT/runs/digits
case ${1:-} in "" | --*) ;; *) WORKDIR=$1; shift ;; esac
for word; do
  case $word in
    --config.?*=*) ;;
    *) echo "local.sh: $word: must be --config.KEY=VALUE; WORKDIR comes first" >&2; exit 2 ;;
  esac
done
SEED=${SEED:-0}
case $SEED in *[!0-9]* | ??????????*) echo "local.sh: SEED=$SEED: must be a whole number below 1e9" >&2; exit 2 ;; esac
HALF=$(dirname "$WORKDIR")/home/ViT-half
ALL=$(dirname "$WORKDIR")/home/ViT-digits

PHOTOS=cifar10/ViT-6_4
CAT=$(dirname "$WORKDIR")/cat

set_up ""
echo "Training a Vision Transformer on 1,437 handwritten digits ..."
"$VENV/bin/vit_jax" train digits --workdir="$WORKDIR" "$@"
echo
echo "Evaluating what was saved, on the whole test split ..."
"$VENV/bin/vit_jax" evaluate --checkpoint="$WORKDIR"
echo
echo "Naming ten test images ..."
"$VENV/bin/vit_jax" predict --checkpoint="$WORKDIR" --examples=10
echo
echo "Drawing what it attends to, and what its filters and positions look like ..."
"$VENV/bin/vit_jax" inspect all --checkpoint="$WORKDIR"
echo
echo "Pre-training another one on the digits 0 to 4 alone ..."
"$VENV/bin/vit_jax" train home/ViT-half --workdir="$HALF" --config.seed="$SEED"
echo
echo "Few-shot: what a linear classifier of all ten digits makes of its features ..."
"$VENV/bin/vit_jax" evaluate --checkpoint="$HALF" --config.evaluation.fewshot=digits
echo
echo "Transferring it to all ten digits at 10 x 10 pixels: choosing a rate, training three times, testing ..."
"$VENV/bin/vit_jax" transfer home/ViT-digits --workdir="$ALL" --parallel=3 --config.init_from="$HALF"
echo
"$VENV/bin/vit_jax" report "$ALL" "$HALF" "$WORKDIR"
echo
echo "Asking a ViT that was trained on CIFAR-10 what a photograph shows, and what it attends to ..."
"$VENV/bin/vit_jax" predict --checkpoint="$PHOTOS" "$ROOT/docs/pictures/cat.jpg"
"$VENV/bin/vit_jax" inspect attention --checkpoint="$PHOTOS" "$ROOT/docs/pictures/cat.jpg" --output="$CAT"
echo
echo "Done. Look at $ALL/report.html and $CAT/attention-1.png   Run it yourself: $VENV/bin/vit_jax --help"
