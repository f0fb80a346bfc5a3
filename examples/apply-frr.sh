#!/bin/sh
# Installs planned routes on FRR switches: weft route watch --apply 'examples/apply-frr.sh fabric.json' --push ...
# Changes static routes to single hosts (/32) only, where a switch differs, new ones first; all switches at once.
# Running configurations alone: a switch that restarts has the routes of its saved one until the next change.
# ON_SWITCH is the command that runs words on a switch: ON_SWITCH NAME 'vtysh ...' (default: ssh).
set -eu
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
weft route export frr --fabric "$1" --routes "$2" --output "$work/new"

host_routes() { sed -n 's#^ *\(ip route [0-9.]*/32 .*[^ ]\) *$#\1#p' "$1" | sort; }

load() {
  switch=$(basename "$1" .conf)
  ${ON_SWITCH:-ssh} "$switch" "vtysh -c 'show running-config'" >"$1.running" </dev/null
  host_routes "$1" >"$1.want"
  host_routes "$1.running" >"$1.have"
  comm -13 "$1.have" "$1.want" >"$1.change"
  comm -23 "$1.have" "$1.want" | sed 's/^/no /' >>"$1.change"
  if [ -s "$1.change" ]; then ${ON_SWITCH:-ssh} "$switch" "vtysh -f /dev/stdin" <"$1.change"; fi
}

jobs='' failed=0
for file in "$work"/new/*.conf; do
  load "$file" &
  jobs="$jobs $!"
done
for job in $jobs; do wait "$job" || failed=1; done
exit $failed
