# shellcheck shell=bash
# Sourced by the launchers: nothing secret is printed, neither on a terminal nor into a log.

hush() { # hush TEXT: prints it without values of variables such as HF_TOKEN, passwords in addresses, tokens, signatures
  local text=$1 name value pattern
  while read -r name; do
    case $name in *TOKEN | *API_KEY | *ACCESS_KEY | *SECRET | *PASSWORD) value=${!name} ;; *) continue ;; esac
    ((${#value} < 8)) || text=${text//"$value"/'***'}
  done < <(compgen -e)
  for pattern in \
    '(://)([^/@*[:space:]]+)(@)' \
    '(hf_|ghp_|github_pat_|ya29\.|AIza)([A-Za-z0-9_.-]{8,})' \
    '([Tt]oken=|TOKEN=|[Ss]ecret=|SECRET=|[Pp]assword=|PASSWORD=|[Aa]pi_?[Kk]ey=|API_KEY=|[Ss]ignature=|[Cc]redential=)([^]*&;,[:space:]"'\'']+)'; do
    while [[ $text =~ $pattern ]]; do
      value="${BASH_REMATCH[1]}***${BASH_REMATCH[3]:-}"
      text=${text//"${BASH_REMATCH[0]}"/"$value"}
    done
  done
  printf '%s\n' "$text"
}
