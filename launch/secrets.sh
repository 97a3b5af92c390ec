# shellcheck shell=bash
# Sourced by the launchers: nothing secret is printed, neither on a terminal nor into a log.

hush() { # hush TEXT: prints it without values of variables such as HF_TOKEN, passwords in addresses, tokens, signatures
  local text=$1 name value pattern
  while read -r name; do
    case $name in *TOKEN | *API_KEY | *ACCESS_KEY | *SECRET | *PASSWORD) value=${!name} ;; *) continue ;; esac
    ((${#value} < 8)) || text=${text//"$value"/'***'}
  done < <(compgen -e)
  for pattern in \
    '(://)()([^/@*[:space:]]+)@' \
    '((hf_|ghp_|github_pat_|ya29\.|AIza))([A-Za-z0-9_.-]{8,})' \
    '([?&][A-Za-z0-9_.-]*([Tt]oken|[Ss]ecret|[Pp]assword|[Kk]ey|[Ss]ignature|[Cc]redential)=)([^]*&[:space:]"'\'']+)' \
    '((TOKEN|API_KEY|ACCESS_KEY|SECRET|PASSWORD)=["'\'']?)([^]*&[:space:]"'\'']+)'; do
    while [[ $text =~ $pattern ]]; do
      text=${text//"${BASH_REMATCH[1]}${BASH_REMATCH[3]}"/"${BASH_REMATCH[1]}***"}
    done
  done
  printf '%s\n' "$text"
}
