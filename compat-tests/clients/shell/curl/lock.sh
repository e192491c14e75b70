# The server's lock service by the JSON gateway: a call that is answered when the lock is held.
source "$(dirname "$0")/support.sh"

name=$(b "$PREFIX/lock")
# lock NAME LEASE: asks in the background.
lock() { stream "$1" lock/lock "{\"name\":\"$name\",\"lease\":$2}"; }
key() { jq -r '.key // empty' "$work/$1" 2>/dev/null; }
held() { [ -n "$(key "$1")" ]; }
unlock() { good lock/unlock "{\"key\":\"$(key "$1")\"}"; }

step acquire
grant 120
a=$lease
grant 120
b=$lease
lock first "$a"
soon 5 "A has the lock" held first
equal "the key" "$(key first | base64 -d)" "$PREFIX/lock/$(printf %x "$a")"

step refused
lock second "$b"
sleep 0.5
held second && fail "B has the lock while A holds it"

step passed
unlock first
soon 2 "B has the lock" held second

step died
lock third "$a"
sleep 0.5
held third && fail "A has the lock while B holds it"
good lease/revoke "{\"ID\":$b}"
soon 4 "A has the lock" held third
unlock third

step counter
counter=$PREFIX/counter
put "$counter" 0
count_up() {
  local round locked
  grant 120
  for round in {1..10}; do
    good lock/lock "{\"name\":\"$name\",\"lease\":$lease}"
    locked=$(pick .key)
    put "$counter" "$(($(pair "$counter" | cut -d ' ' -f 5) + 1))"
    good lock/unlock "{\"key\":\"$locked\"}"
  done
}
counters=()
for number in 1 2 3; do
  count_up &
  counters+=($!)
done
wait "${counters[@]}"
equal "counter" "$(pair "$counter" | cut -d ' ' -f 5)" 30
end
