# Compaction by the JSON gateway.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
compacted="etcdserver: mvcc: required revision has been compacted"

step compact
revisions=()
for number in {1..10}; do
  put "$key" "$number"
  revisions+=("$(header)")
done
good kv/compaction "{\"revision\":${revisions[7]}}"

step range
refused "$compacted" kv/range "{\"key\":\"$(b "$key")\",\"revision\":${revisions[1]}}"
get "$key" "\"revision\":${revisions[8]}"
equal "value" "$(pairs | cut -d ' ' -f 5)" 9

step again
refused "$compacted" kv/compaction "{\"revision\":${revisions[7]}}"

step future
revision
refused "etcdserver: mvcc: required revision is a future revision" \
  kv/compaction "{\"revision\":$((rev + 1000000))}"

step watch
watch old "$key" "\"start_revision\":${revisions[1]}"
canceled() { jq -e 'select(.result.canceled)' "$work/old" >/dev/null 2>&1; }
soon 5 "the watch is ended" canceled
equal "the compact revision" "$(jq -r 'select(.result.canceled) | .result.compact_revision' "$work/old")" "${revisions[7]}"
equal "events" "$(events old)" ""

step watch-later
watch seen "$key" "\"start_revision\":${revisions[8]}"
brings seen 1,3,4 "PUT 9 ${revisions[8]}
PUT 10 ${revisions[9]}"
end
