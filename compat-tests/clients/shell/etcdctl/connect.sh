# What etcdctl can ask of a server first.
source "$(dirname "$0")/support.sh"

# fields NAME: of an answer in the form of fields.
fields() { sed -n "s/^\"$1\" : //p" <<<"$said"; }

step status
good endpoint status -w fields
check "the version has three numbers: $(fields Version)" "$(fields Version | sort -u | grep -c '^"[0-9]*\.[0-9]*\.[0-9]*"$')" = 1
for name in ClusterID MemberID Revision RaftTerm Leader; do
  case $(fields $name) in "" | 0) fail "$name is '$(fields $name)'" ;; esac
done
cluster=$(fields ClusterID)
member=$(fields MemberID)
good endpoint health

step members
good member list -w fields
equal "cluster" "$(fields ClusterID)" "$cluster"
check "a member has the id of the one that answered" "$(sed -n 's/^"ID" : //p' <<<"$said" | grep -c "^$member$")" = 1
check "it has a client URL" "$(sed -n 's/^"ClientURL" : //p' <<<"$said" | grep -c '^"http.*:[0-9]*"$')" -ge 1

step header
two() {
  good get "$PREFIX/none" -w fields
  wanted=$(fields Revision)
  first=$(fields ClusterID)
  good get "$PREFIX/none" -w fields
  saw=$(fields Revision)
  equal "cluster" "$(fields ClusterID)" "$first"
  equal "count" "$(fields Count)" 0
}
undisturbed "the revision" two
equal "cluster" "$first" "$cluster"
check "the revision is above 0" "$saw" -gt 0

step unreachable
start=$(now)
ADDRESS=127.0.0.1:1 ctl --dial-timeout=2s --command-timeout=3s get "$PREFIX/none" </dev/null
took=$(($(now) - start))
check "etcdctl fails" "$status" -ne 0
equal "its error" "$erred" "Error: context deadline exceeded"
check "within its timeout, in ms" "$took" -lt 4000
end
