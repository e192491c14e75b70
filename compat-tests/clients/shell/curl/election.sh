# The server's election service by the JSON gateway.
source "$(dirname "$0")/support.sh"

name=$(b "$PREFIX/election")
campaign() { stream "$1" election/campaign "{\"name\":\"$name\",\"lease\":$2,\"value\":\"$(b "$1")\"}"; }
leads() { jq -e .leader "$work/$1" >/dev/null 2>&1; }
leader() {
  good election/leader "{\"name\":\"$name\"}"
  pick '.kv.value | @base64d'
}
observed() { jq -r '.result.kv.value // empty | @base64d' "$work/observer" 2>/dev/null | tail -n 1; }
observes() { [ "$(observed)" = "$1" ]; }

step one
grant 30
first=$lease
grant 30
second=$lease
campaign one "$first"
soon 5 "the first leads" leads one
campaign two "$second"
sleep 0.5
leads two && fail "the second leads beside the first"
equal "the leader's value" "$(leader)" one
stream observer election/observe "{\"name\":\"$name\"}"
soon 3 "the observer sees the first" observes one

step proclaim
good election/proclaim "{\"leader\":$(jq -c .leader "$work/one"),\"value\":\"$(b another)\"}"
soon 3 "the observer sees the other value" observes another
equal "the leader's value" "$(leader)" another

step resign
good election/resign "{\"leader\":$(jq -c .leader "$work/one")}"
soon 3 "the second leads" leads two
equal "the leader's value" "$(leader)" two

step last
good lease/revoke "{\"ID\":$second}"
refused "election: no leader" election/leader "{\"name\":\"$name\"}"
end
