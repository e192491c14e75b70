# etcdctl lock: holds until it is interrupted, or as long as a command runs.
source "$(dirname "$0")/support.sh"

name=$PREFIX/lock
held() { has "$1" "^$name/[0-9a-f]*$"; }

step acquire
start a lock "$name"
a=$started
soon 5 "A has the lock" held a

step refused
start b lock "$name"
b=$started
sleep 0.5
equal "what B has" "$(<"$work/b")" ""

step passed
kill -INT "$a"
soon 2 "B has the lock" held b

step died
start again lock "$name"
a=$started
sleep 0.5
equal "what A has" "$(<"$work/again")" ""
good lease revoke "$(sed 's|.*/||' "$work/b")"
soon 4 "A has the lock" held again
kill -INT "$a"

step counter
counter=$PREFIX/counter
good put "$counter" 0
count() {
  local round
  for round in {1..10}; do
    "${etcdctl[@]}" --endpoints="$ADDRESS" lock -- "$name" bash -c '
      counter=$1 address=$2
      shift 2
      value=$("$@" --endpoints="$address" get "$counter" --print-value-only)
      "$@" --endpoints="$address" put "$counter" "$((value + 1))"
    ' count "$counter" "$ADDRESS" "${etcdctl[@]}" >/dev/null 2>>"$work/count.err" </dev/null
  done
}
counters=()
for number in 1 2 3; do
  count &
  counters+=($!)
done
wait "${counters[@]}"
says "$counter
30" get "$counter"
end
