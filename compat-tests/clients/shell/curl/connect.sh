# What one asks a server first by HTTP.
source "$(dirname "$0")/support.sh"

step status
said=$(curl -sS --max-time 5 "http://$ADDRESS/version")
equal "the version's form" "$(pick .etcdserver | grep -c '^[0-9]*\.[0-9]*\.[0-9]*$')" 1
version=$(pick .etcdserver)
said=$(curl -sS --max-time 5 "http://$ADDRESS/health")
equal "health" "$(pick .health)" true
good maintenance/status '{}'
equal "version" "$(pick .version)" "$version"
for name in .leader .header.cluster_id .header.member_id .header.revision .header.raft_term; do
  case $(pick $name) in null | 0 | "") fail "$name is '$(pick $name)'" ;; esac
done
cluster=$(pick .header.cluster_id)
member=$(pick .header.member_id)

step members
good cluster/member/list '{}'
equal "cluster" "$(pick .header.cluster_id)" "$cluster"
equal "members with the id of the one that answered" "$(pick "[.members[] | select(.ID == \"$member\")] | length")" 1
check "each has a client URL" "$(pick '[.members[] | select(.clientURLs[0] | test("^https?://.*:[0-9]+$") | not)] | length')" = 0

step header
two() {
  get "$PREFIX/none"
  first=$(pick .header.cluster_id)
  wanted=$(header)
  get "$PREFIX/none"
  saw=$(header)
  equal "cluster" "$(pick .header.cluster_id) $first" "$cluster $cluster"
  equal "pairs and count" "$(pick '"\(.kvs) \(.count // 0)"')" "null 0"
}
undisturbed "the revision" two
check "the revision is above 0" "$saw" -gt 0

step unreachable
curl -sS --max-time 3 http://127.0.0.1:1/version >"$work/answer" 2>&1 </dev/null
equal "curl's exit code, for a connection that cannot be made" "$?" 7
end
