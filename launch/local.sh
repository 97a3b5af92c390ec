#!/usr/bin/env bash
# One command on a fresh machine: sets up .venv, trains the embedded default, and shows what it learned.
#
#   launch/local.sh [WORKDIR] [--config.KEY=VALUE ...]      PYTHON=python3.13 launch/local.sh
#
# WORKDIR (default runs/digits in the checkout) is resumed if it holds an unfinished run.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

WORKDIR=$ROOT/runs/digits
case ${1:-} in "" | --*) ;; *) WORKDIR=$1; shift ;; esac

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
echo "Done. Curves: $WORKDIR/curves.png   Run it yourself: $VENV/bin/vit_jax --help"
