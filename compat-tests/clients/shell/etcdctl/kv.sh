# Keys, values and ranges with etcdctl.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
for byte in {0..255}; do printf "\\x$(printf %x "$byte")"; done >"$work/bytes"

step put
put() {
  good del "$key"
  revision
  wanted=$((rev + 1))
  ctl put "$key" -w json <"$work/bytes"
  saw=$(pick .header.revision)
}
undisturbed "the put's revision" put
json get "$key"
equal "value" "$(pick .kvs[0].value)" "$(base64 -w 0 <"$work/bytes")"
equal "key" "$(pick '.kvs[0].key | @base64d')" "$key"
equal "pair" "$(pick '.kvs[0] | "\(.create_revision) \(.mod_revision) \(.version) \(.lease // 0)"')" "$saw $saw 1 0"
created=$saw

step again
json put "$key" second
again=$(pick .header.revision)
equal "pair" "$(pair "$key")" "$created $again 2 0 second"
check "mod_revision rises" "$again" -gt "$created"

step prev-kv
json put "$key" third --prev-kv
previous='"\(.create_revision) \(.mod_revision) \(.version) \(.value | @base64d)"'
equal "prev_kv of a put" "$(pick ".prev_kv | $previous")" "$created $again 2 second"
json del "$key" --prev-kv
equal "prev_kvs of a delete" "$(pick ".prev_kvs[] | $previous" | cut -d ' ' -f 1,3-)" "$created 3 third"
json put "$key" anew --prev-kv
equal "prev_kv of a new key" "$(pick .prev_kv)" null

step missing
json get "$PREFIX/none"
equal "pairs and count" "$(pick '"\(.kvs) \(.count // 0)"')" "null 0"

step delete
delete() {
  good put "$key" x
  revision
  wanted=$((rev + 1))
  json del "$key"
  equal "deleted" "$(pick .deleted)" 1
  saw=$(pick .header.revision)
}
undisturbed "the delete's revision" delete
says "" get "$key"
good put "$key" anew
equal "version" "$(pair "$key" | cut -d ' ' -f 3)" 1

step delete-none
none() {
  revision
  wanted=$rev
  json del "$PREFIX/none"
  equal "deleted" "$(pick '.deleted // 0')" 0
  saw=$(pick .header.revision)
}
undisturbed "the revision" none

step prefix
folder=$PREFIX/range
for name in c a e b d; do good put "$folder/$name" "$name"; done
good put "$folder." neighbour
good put "${folder}0" neighbour
keys() { # keys ARGUMENT...: the last segment of each key of a range
  json get "$@"
  pick '[.kvs // [] | .[].key | @base64d | split("/") | last] | join(" ")'
}
equal "keys" "$(keys "$folder/" --prefix)" "a b c d e"
good get "$folder/" --prefix --print-value-only
equal "values" "$said" "$(printf '%s\n' a b c d e)"

step limit
json get "$folder/" --prefix --limit=2
equal "count and more" "$(pick '"\(.count) \(.more)"')" "5 true"
equal "keys" "$(keys "$folder/" --prefix --limit=2)" "a b"

step sort
equal "by key, descending" "$(keys "$folder/" --prefix --sort-by=KEY --order=DESCEND)" "e d c b a"
equal "by mod revision, ascending" "$(keys "$folder/" --prefix --sort-by=MODIFY --order=ASCEND)" "c a e b d"
equal "by mod revision, descending" "$(keys "$folder/" --prefix --sort-by=MODIFY --order=DESCEND)" "d b e a c"

step keys-only
json get "$folder/" --prefix
whole=$(pick '.kvs[] | "\(.key) \(.mod_revision) \(.version)"')
json get "$folder/" --prefix --keys-only
equal "keys and revisions" "$(pick '.kvs[] | "\(.key) \(.mod_revision) \(.version)"')" "$whole"
equal "values" "$(pick '[.kvs[].value // ""] | join("")')" ""

if knows get --count-only; then
  step count-only
  good get "$folder/" --prefix --count-only -w fields
  equal "count" "$(sed -n 's/^"Count" : //p' <<<"$said")" 5
  equal "pairs" "$(grep -c '^"Key"' <<<"$said")" 0
else
  lacks count-only "etcdctl 3.4 has no such option"
fi

step from-key
equal "keys" "$(keys "$folder/c" "${folder}0")" "c d e"

step past
then=$(pair "$folder/a")
good put "$folder/a" later
at=$(cut -d ' ' -f 2 <<<"$then")
json get "$folder/a" --rev="$at"
equal "value" "$(pick '.kvs[0].value | @base64d')" a
check "the header is of now" "$(pick .header.revision)" -gt "$at"

step future
revision
refused "etcdserver: mvcc: required revision is a future revision" get "$key" --rev="$((rev + 1000000))"

step serializable
says "$folder/b
b" get "$folder/b" --consistency=s

step delete-prefix
prefix() {
  for name in a b c d e; do good put "$folder/$name" x; done
  revision
  wanted=$((rev + 1))
  json del "$folder/" --prefix
  equal "deleted" "$(pick .deleted)" 5
  saw=$(pick .header.revision)
}
undisturbed "the delete's revision" prefix
says "" get "$folder/" --prefix
says "${folder}0
neighbour" get "${folder}0"

step ignore-value
refused "etcdserver: key not found" put "$PREFIX/none" --ignore-value
good put "$key" value
before=$(pair "$key")
good put "$key" --ignore-value
equal "value" "$(pair "$key" | cut -d ' ' -f 5)" value
equal "version" "$(pair "$key" | cut -d ' ' -f 3)" "$(($(cut -d ' ' -f 3 <<<"$before") + 1))"

step empty-key
refused "etcdserver: key is not provided" put "" value

step too-large
head -c 2000000 /dev/zero | tr '\0' x >"$work/large"
ctl put "$PREFIX/large" <"$work/large"
check "it is refused" "$status" -ne 0
equal "refusal" "$erred" "Error: etcdserver: request is too large"
head -c 1000000 "$work/large" >"$work/fits"
ctl put "$PREFIX/large" <"$work/fits"
equal "answer" "$said" OK
good get "$PREFIX/large" --print-value-only
check "the value comes back" "$said" = "$(<"$work/fits")"
end
