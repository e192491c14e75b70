# Keys, values and ranges by the JSON gateway.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
for byte in {0..255}; do printf "\\x$(printf %x "$byte")"; done >"$work/bytes"
bytes=$(base64 -w 0 <"$work/bytes")

step put
new() {
  del "$key"
  revision
  wanted=$((rev + 1))
  good kv/put "{\"key\":\"$(b "$key")\",\"value\":\"$bytes\"}"
  saw=$(header)
}
undisturbed "the put's revision" new
get "$key"
equal "key and value" "$(pick '.kvs[0] | "\(.key | @base64d) \(.value)"')" "$key $bytes"
equal "pair" "$(pick '.kvs[0] | "\(.create_revision) \(.mod_revision) \(.version) \(.lease // 0)"')" "$saw $saw 1 0"
made=$saw

step again
put "$key" second
again=$(header)
equal "pair" "$(pair "$key")" "$made $again 2 0 second"
check "mod_revision rises" "$again" -gt "$made"

step prev-kv
previous='"\(.create_revision) \(.mod_revision) \(.version) \(.value | @base64d)"'
put "$key" third '"prev_kv":true'
equal "prev_kv of a put" "$(pick ".prev_kv | $previous")" "$made $again 2 second"
third=$(header)
del "$key" '"prev_kv":true'
equal "prev_kvs of a delete" "$(pick ".prev_kvs[] | $previous")" "$made $third 3 third"
put "$key" anew '"prev_kv":true'
equal "prev_kv of a new key" "$(pick .prev_kv)" null

step missing
get "$PREFIX/none"
equal "pairs and count" "$(pick '"\(.kvs) \(.count // 0)"')" "null 0"

step delete
delete() {
  put "$key" x
  revision
  wanted=$((rev + 1))
  del "$key"
  equal "deleted" "$(pick .deleted)" 1
  saw=$(header)
}
undisturbed "the delete's revision" delete
equal "the pair" "$(pair "$key")" ""
put "$key" anew
equal "version" "$(pair "$key" | cut -d ' ' -f 3)" 1

step delete-none
none() {
  revision
  wanted=$rev
  del "$PREFIX/none"
  equal "deleted" "$(pick '.deleted // 0')" 0
  saw=$(header)
}
undisturbed "the revision" none

step prefix
folder=$PREFIX/range
for name in c a e b d; do put "$folder/$name" "$name"; done
put "$folder." neighbour
put "${folder}0" neighbour
whole=$(end_of "$folder/")
keys() { # keys MEMBERS [START]: the last segment of each key of the range
  get "${2:-$folder/}" "$whole${1:+,$1}"
  pick '[.kvs // [] | .[].key | @base64d | split("/") | last] | join(" ")'
}
equal "keys" "$(keys "")" "a b c d e"

step limit
get "$folder/" "$whole,\"limit\":2"
equal "pairs, count and more" "$(pick '"\(.kvs | length) \(.count) \(.more)"')" "2 5 true"
equal "keys" "$(keys '"limit":2')" "a b"

step sort
equal "by key, descending" "$(keys '"sort_order":"DESCEND","sort_target":"KEY"')" "e d c b a"
equal "by mod revision, ascending" "$(keys '"sort_order":"ASCEND","sort_target":"MOD"')" "c a e b d"
equal "by mod revision, descending" "$(keys '"sort_order":"DESCEND","sort_target":"MOD"')" "d b e a c"

step keys-only
get "$folder/" "$whole"
full=$(pick '.kvs[] | "\(.key) \(.create_revision) \(.mod_revision) \(.version)"')
get "$folder/" "$whole,\"keys_only\":true"
equal "keys and revisions" "$(pick '.kvs[] | "\(.key) \(.create_revision) \(.mod_revision) \(.version)"')" "$full"
equal "values" "$(pick '[.kvs[].value // ""] | join("")')" ""

step count-only
get "$folder/" "$whole,\"count_only\":true"
equal "pairs and count" "$(pick '"\(.kvs) \(.count)"')" "null 5"

step from-key
equal "keys" "$(keys "" "$folder/c")" "c d e"

step past
then=$(pair "$folder/a")
put "$folder/a" later
get "$folder/a" "\"revision\":$(cut -d ' ' -f 2 <<<"$then")"
equal "pair" "$(pairs)" "$then"
check "the header is of now" "$(header)" -gt "$(cut -d ' ' -f 2 <<<"$then")"

step future
revision
refused "etcdserver: mvcc: required revision is a future revision" \
  kv/range "{\"key\":\"$(b "$key")\",\"revision\":$((rev + 1000000))}"

step serializable
get "$folder/b" '"serializable":true'
equal "value" "$(pairs | cut -d ' ' -f 5)" b

step delete-prefix
prefix() {
  for name in a b c d e; do put "$folder/$name" x; done
  revision
  wanted=$((rev + 1))
  del "$folder/" "$whole"
  equal "deleted" "$(pick .deleted)" 5
  saw=$(header)
}
undisturbed "the delete's revision" prefix
equal "keys" "$(keys "")" ""
equal "a neighbour" "$(pair "${folder}0" | cut -d ' ' -f 5)" neighbour

step ignore-value
refused "etcdserver: key not found" kv/put "{\"key\":\"$(b "$PREFIX/none")\",\"ignore_value\":true}"
put "$key" value
before=$(pair "$key" | cut -d ' ' -f 3)
good kv/put "{\"key\":\"$(b "$key")\",\"ignore_value\":true}"
equal "version and value" "$(pair "$key" | cut -d ' ' -f 3,5)" "$((before + 1)) value"

step empty-key
refused "etcdserver: key is not provided" kv/put '{"value":"eA=="}'

step too-large
large() { head -c "$1" /dev/zero | base64 -w 0; }
refused "etcdserver: request is too large" kv/put "{\"key\":\"$(b "$PREFIX/large")\",\"value\":\"$(large 2000000)\"}"
fits=$(large 1000000)
good kv/put "{\"key\":\"$(b "$PREFIX/large")\",\"value\":\"$fits\"}"
get "$PREFIX/large"
[ "$(pick '.kvs[0].value')" = "$fits" ] || fail "the value does not come back"
end
