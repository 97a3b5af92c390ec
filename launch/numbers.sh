# shellcheck shell=bash
# Sourced by the launchers: what may go into arithmetic, where bash would run any $(command) in a text.

is_whole() { # is_whole TEXT: a number from 0 to 999999999, in the form that bash takes for decimal
  [[ $1 =~ ^(0|[1-9][0-9]{0,8})$ ]]
}

shown() { # shown TEXT: what fits on a line of a message
  local text=${1:0:60} # first: bash replaces in long texts for seconds
  echo "${text//[[:cntrl:]]/ }"
}
