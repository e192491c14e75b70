# Compaction with etcdctl.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
compacted="etcdserver: mvcc: required revision has been compacted"

step compact
revisions=()
for number in {1..10}; do
  json put "$key" "$number"
  revisions+=("$(pick .header.revision)")
done
says "compacted revision ${revisions[7]}" compact "${revisions[7]}"

step range
refused "$compacted" get "$key" --rev="${revisions[1]}"
says "$key
9" get "$key" --rev="${revisions[8]}"

step again
refused "$compacted" compact "${revisions[7]}"

step future
revision
refused "etcdserver: mvcc: required revision is a future revision" compact "$((rev + 1000000))"

step watch
ctl watch "$key" --rev="${revisions[1]}" </dev/null
check "the watch has ended" "$status" -ne 0 -a "$status" -ne 124
equal "what it says" "$(grep -v '^{' "$work/err" | head -n 1)" "watch was canceled ($compacted)"

step watch-later
watch seen "$key" --rev="${revisions[8]}"
brings seen 1,3,4 "PUT 9 ${revisions[8]}
PUT 10 ${revisions[9]}"
end
