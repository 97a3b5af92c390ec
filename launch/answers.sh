# shellcheck shell=bash disable=SC2034
# Sourced by the launchers: what an answer means, by the table in answers.txt.

ANSWERS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/answers.txt

meaning() { # meaning KIND TEXT: sets MEANING, and REMEDY (-> text to add, or => text to print instead)
  local kind meaning pattern whole
  MEANING=unknown REMEDY=''
  while read -r kind meaning pattern; do
    [ "$kind" = "$1" ] || continue
    REMEDY=''
    if [[ $pattern =~ ^(.*)\ ([-=]\>\ .*)$ ]]; then
      pattern=${BASH_REMATCH[1]} REMEDY=${BASH_REMATCH[2]}
    fi
    case $kind in error | ssh | slurm) whole=$pattern ;; *) whole="^($pattern)\$" ;; esac
    if [[ $2 =~ $whole ]]; then
      MEANING=$meaning
      return
    fi
  done <"$ANSWERS"
  REMEDY=''
}
