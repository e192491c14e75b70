#!/usr/bin/env bash
# Runs one scenario with one command-line client: run.sh CLIENT SCENARIO ADDRESS PREFIX
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 4 ] || { echo "usage: run.sh CLIENT SCENARIO ADDRESS PREFIX" >&2; exit 2; }
program=$here/$1/$2.sh
[ -e "$program" ] || { echo "$1 has no scenario $2" >&2; exit 2; }
limit=60
[ "$2" != restart ] || limit=120
exec timeout --kill-after=5 "$limit" bash "$program" "$@"
