# Transactions with etcdctl, which reads compares, then, else from standard input.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key

# txn COMPARES THEN ELSE: lines each; the answer as JSON.
txn() {
  ctl txn -w json < <(for part in "$@"; do printf '%s\n' ${part:+"$part"} ""; done)
  # The spelling of these fields is not the same in every release.
  said=$(sed 's/ResponsePut/response_put/g; s/ResponseDeleteRange/response_delete_range/g; s/ResponseRange/response_range/g' <<<"$said")
}
passes() {
  txn "$@"
  [ $status -eq 0 ] || fail "txn $*: $erred"
}
succeeded() { pick '.succeeded // false'; }

step then
passes "ver(\"$key\") = \"0\"" "put $key one" "get $key"
equal "succeeded" "$(succeeded)" true
header=$(pick .header.revision)
first=$(pair "$key")
equal "pair" "$first" "$header $header 1 0 one"

step otherwise
passes "ver(\"$key\") = \"0\"" "put $key two" "get $key"
equal "succeeded" "$(succeeded)" false
equal "what the else branch read" "$(pick '.. | .value? // empty | @base64d')" one
equal "pair" "$(pair "$key")" "$first"

step compares
good put "$key" m
now=$(pair "$key" | cut -d ' ' -f 2)
while read -r target low same high; do
  while read -r sign value holds; do
    passes "$target(\"$key\") $sign \"$value\"" "get $key" "get $key"
    equal "$target $sign $value" "$(succeeded)" "$holds"
  done <<END
= $same true
= $low false
> $low true
> $same false
< $high true
< $same false
!= $low true
!= $same false
END
done <<END
val a m z
ver 1 2 3
create $((header - 1)) $header $((header + 1))
mod $((now - 1)) $now $((now + 1))
END

step several
several() {
  good put "$PREFIX/goes" x
  revision
  wanted=$((rev + 1))
  passes "" "put $PREFIX/0 0
put $PREFIX/1 1
del $PREFIX/goes
put $PREFIX/2 2" ""
  saw=$(pick .header.revision)
  kinds=$(pick '[.responses[].Response | keys[]] | join(" ")')
  deleted=$(pick '.responses[2].Response.response_delete_range.deleted')
}
undisturbed "the transaction's revision" several
equal "kinds" "$kinds" "response_put response_put response_delete_range response_put"
equal "deleted" "$deleted" 1
for number in 0 1 2; do
  equal "pair $number" "$(pair "$PREFIX/$number" | cut -d ' ' -f 2,5)" "$saw $number"
done
says "" get "$PREFIX/goes"

step reads
passes "" "put $key new
get $key" ""
equal "value" "$(pick '.responses[1].Response.response_range.kvs[0].value | @base64d')" new

step read-only
reads() {
  revision
  wanted=$rev
  passes "" "get $key
get $PREFIX/0" ""
  at=$(pick .header.revision)
  revision
  saw=$rev
  check "the transaction's own revision is not above" "$at" -le "$saw"
  check "nor below" "$at" -ge "$wanted"
}
undisturbed "the revision" reads

step all-or-nothing
passes "val(\"$key\") = \"new\"
ver(\"$key\") = \"99\"" "put $PREFIX/never x
put $key never" ""
equal "succeeded" "$(succeeded)" false
says "$key
new" get "$key"
says "" get "$PREFIX/never"

step duplicate
txn "" "put $key a
put $PREFIX/never x
put $key b" ""
check "it is refused" $status -ne 0
equal "refusal" "$erred" "Error: etcdserver: duplicate key given in txn request"
says "$key
new" get "$key"
says "" get "$PREFIX/never"

lacks nested "etcdctl has no transaction within a transaction"

step cas
counter=$PREFIX/counter
good put "$counter" 0
count() {
  local done=0 at value
  while [ "$done" -lt 10 ]; do
    read -r _ at _ _ value <<<"$(pair "$counter")"
    passes "mod(\"$counter\") = \"$at\"" "put $counter $((value + 1))" ""
    case $said in
      *'"succeeded":true'*) done=$((done + 1)) ;;
      *) pause "0.0$((RANDOM % 90 + 10))" ;;
    esac
  done
}
counters=()
for number in 1 2 3 4; do
  count &
  counters+=($!)
done
wait "${counters[@]}"
equal "version and value" "$(pair "$counter" | cut -d ' ' -f 3,5)" "41 40"
end
