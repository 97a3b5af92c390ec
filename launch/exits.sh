# shellcheck shell=bash
# Sourced by the launchers: what the exit codes of several processes come to.

worst() { # worst CODE...: 2 and 78 are causes that a restart does not mend; 75 and 70 also follow from another's end
  local code
  for code in 78 2; do
    [[ " $* " != *" $code "* ]] || { echo "$code" && return; }
  done
  for code; do
    case $code in 0 | 70 | 75) ;; *) echo "$code" && return ;; esac
  done
  for code in 70 75; do
    [[ " $* " != *" $code "* ]] || { echo "$code" && return; }
  done
  echo $(($# ? 0 : 70)) # of none nothing is known
}
