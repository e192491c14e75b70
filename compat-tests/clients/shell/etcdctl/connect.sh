# What etcdctl can ask of a server first.
source "$(dirname "$0")/support.sh"

# Each endpoint is asked for its own status.
read -ra endpoints <<<"${ADDRESS//,/ }"

# fields NAME: of an answer in the form of fields; of several answers a line each.
fields() { sed -n "s/^\"$1\" : //p" <<<"$said"; }

step status
good endpoint status -w fields
for name in Version ClusterID MemberID Revision RaftTerm Leader; do
  # etcdctl 3.4 says some of them twice, from the header and from the answer.
  check "answers with $name" "$(fields $name | grep -c .)" -ge "${#endpoints[@]}"
  check "none is 0: $name" "$(fields $name | grep -cx 0)" = 0
done
equal "versions of three numbers" "$(fields Version | grep -c '^"[0-9]*\.[0-9]*\.[0-9]*"$')" "${#endpoints[@]}"
cluster=$(fields ClusterID | sort -u)
number "$cluster"
answering=$(fields MemberID | sort)
equal "members that answered, each once" "$(uniq <<<"$answering" | grep -c .)" "${#endpoints[@]}"
number "$(fields Leader | sort -u)"
good endpoint health
equal "endpoints in health" "$(cat "$work/err" - <<<"$said" | grep -c ' is healthy')" "${#endpoints[@]}"

step members
good member list -w fields
equal "cluster" "$(fields ClusterID)" "$cluster"
# The list says `ID`; the header, `MemberID`.
equal "who answered and is no member" "$(comm -23 <(echo "$answering") <(fields ID | sort))" ""
equal "members without a client URL" "$(($(fields ID | grep -c .) - $(fields ClientURL | grep -c '^"http.*:[0-9]*"$')))" 0

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
