#!/usr/bin/env bash
# Prints the licences of all modules that cmd/evenkeel links to, from Go's module cache, and
# that of what is embedded: what goes with a binary that is handed on.
#
#   docs/third_party.sh > LICENSES.txt
set -euo pipefail
cd "$(dirname "$0")/.."
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/evenkeel | sort -u | while read -r path version dir; do
  texts=$(find "$dir" -maxdepth 2 -type f \( -ipath "$dir/*licen[cs]e*" -o -iname 'COPYING*' -o -iname 'NOTICE*' -o -iname PATENTS \) ! -name '*.go' ! -name gpl.txt ! -path '*/testdata/*' | sort)
  [ -n "$texts" ] || { echo "$path: no licence in $dir" >&2; exit 1; }
  for text in $texts; do
    printf '\n==== %s %s: %s\n\n' "$path" "$version" "${text#"$dir"/}"
    cat "$text"
  done
done
printf '\n==== HiGHS, in solver/milp/highs.wasm\n\n'
cat solver/milp/LICENSE.highs
