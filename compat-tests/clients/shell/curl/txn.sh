# Transactions by the JSON gateway.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
p() { echo "{\"requestPut\":{\"key\":\"$(b "$1")\",\"value\":\"$(b "$2")\"}}"; }
g() { echo "{\"requestRange\":{\"key\":\"$(b "$1")\"}}"; }
d() { echo "{\"requestDeleteRange\":{\"key\":\"$(b "$1")\"}}"; }
# compare TARGET RESULT FIELD VALUE [KEY]
compare() { echo "{\"key\":\"$(b "${5:-$key}")\",\"target\":\"$1\",\"result\":\"$2\",\"$3\":\"$4\"}"; }
# body COMPARES THEN ELSE
body() { echo "{\"compare\":[$1],\"success\":[$2],\"failure\":[${3:-}]}"; }
txn() { good kv/txn "$(body "$@")"; }
succeeded() { pick '.succeeded // false'; }
absent=$(compare VERSION EQUAL version 0)

step then
txn "$absent" "$(p "$key" one)" "$(g "$key")"
equal "succeeded" "$(succeeded)" true
made=$(header)
first=$(pair "$key")
equal "pair" "$first" "$made $made 1 0 one"

step otherwise
txn "$absent" "$(p "$key" two)" "$(g "$key")"
equal "succeeded" "$(succeeded)" false
equal "what the else branch read" "$(pick '.responses[0].response_range.kvs[0].value | @base64d')" one
equal "pair" "$(pair "$key")" "$first"

step compares
put "$key" m
now=$(header)
of=$(b "$key")
while read -r target field low same high; do
  while read -r result value holds; do
    good kv/txn "{\"compare\":[{\"key\":\"$of\",\"target\":\"$target\",\"result\":\"$result\",\"$field\":\"$value\"}]}"
    equal "$target $result $value" "$(succeeded)" "$holds"
  done <<END
EQUAL $same true
EQUAL $low false
GREATER $low true
GREATER $same false
LESS $high true
LESS $same false
NOT_EQUAL $low true
NOT_EQUAL $same false
END
done <<END
VALUE value $(b a) $(b m) $(b z)
VERSION version 1 2 3
CREATE create_revision $((made - 1)) $made $((made + 1))
MOD mod_revision $((now - 1)) $now $((now + 1))
END

step several
several() {
  put "$PREFIX/goes" x
  revision
  wanted=$((rev + 1))
  txn "" "$(p "$PREFIX/0" 0),$(p "$PREFIX/1" 1),$(d "$PREFIX/goes"),$(p "$PREFIX/2" 2)"
  saw=$(header)
  kinds=$(pick '[.responses[] | keys[]] | join(" ")')
  deleted=$(pick '.responses[2].response_delete_range.deleted')
}
undisturbed "the transaction's revision" several
equal "kinds" "$kinds" "response_put response_put response_delete_range response_put"
equal "deleted" "$deleted" 1
for number in 0 1 2; do
  equal "pair $number" "$(pair "$PREFIX/$number" | cut -d ' ' -f 2,5)" "$saw $number"
done
equal "the deleted one" "$(pair "$PREFIX/goes")" ""

step reads
txn "" "$(p "$key" new),$(g "$key")"
equal "value" "$(pick '.responses[1].response_range.kvs[0].value | @base64d')" new

step read-only
reads() {
  revision
  wanted=$rev
  txn "" "$(g "$key"),$(g "$PREFIX/0")"
  at=$(header)
  revision
  saw=$rev
  check "the transaction's own revision is not above" "$at" -le "$saw"
  check "nor below" "$at" -ge "$wanted"
}
undisturbed "the revision" reads

step all-or-nothing
txn "$(compare VALUE EQUAL value "$(b new)"),$(compare VERSION EQUAL version 99)" "$(p "$PREFIX/never" x),$(p "$key" never)"
equal "succeeded" "$(succeeded)" false
equal "values" "$(pair "$key" | cut -d ' ' -f 5) $(pair "$PREFIX/never")" "new "

step duplicate
refused "etcdserver: duplicate key given in txn request" \
  kv/txn "$(body "" "$(p "$key" a),$(p "$PREFIX/never" x),$(p "$key" b)")"
equal "values" "$(pair "$key" | cut -d ' ' -f 5) $(pair "$PREFIX/never")" "new "

step nested
inner="{\"requestTxn\":$(body "$(compare VERSION EQUAL version 0 "$PREFIX/inner")" "$(p "$PREFIX/inner" made)")}"
txn "$(compare VALUE EQUAL value "$(b new)")" "$(p "$key" outer),$inner"
equal "succeeded" "$(succeeded) $(pick '.responses[1].response_txn.succeeded')" "true true"
at=$(header)
equal "outer" "$(pair "$key" | cut -d ' ' -f 2,5)" "$at outer"
equal "inner" "$(pair "$PREFIX/inner" | cut -d ' ' -f 2,5)" "$at made"

step cas
counter=$PREFIX/counter
put "$counter" 0
# Without a process but curl for each call: the rounds are many.
encoded=$(b "$counter")
declare -A text
codes=()
for number in {0..40}; do
  codes[number]=$(b "$number")
  text[${codes[number]}]=$number
done
count_up() {
  local done=0 at value
  while [ "$done" -lt 10 ]; do
    good kv/range "{\"key\":\"$encoded\"}"
    [[ $said =~ \"mod_revision\":\"([0-9]+)\" ]] || fail "no mod_revision: $said"
    at=${BASH_REMATCH[1]}
    [[ $said =~ \"value\":\"([^\"]+)\" ]] || fail "no value: $said"
    value=${text[${BASH_REMATCH[1]}]}
    good kv/txn "{\"compare\":[{\"key\":\"$encoded\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"$at\"}],
      \"success\":[{\"requestPut\":{\"key\":\"$encoded\",\"value\":\"${codes[value + 1]}\"}}]}"
    case $said in
      *'"succeeded":true'*) done=$((done + 1)) ;;
      *) pause "0.0$((RANDOM % 90 + 10))" ;;
    esac
  done
}
counters=()
for number in 1 2 3 4; do
  count_up &
  counters+=($!)
done
wait "${counters[@]}"
equal "version and value" "$(pair "$counter" | cut -d ' ' -f 3,5)" "41 40"
end
