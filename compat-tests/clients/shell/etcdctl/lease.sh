# Leases with etcdctl.
source "$(dirname "$0")/support.sh"

kept=$PREFIX/kept
left=$PREFIX/left
decimal() { printf '%d' "0x$1"; }
# lease_of KEY: its lease, in decimal.
lease_of() {
  good get "$1" -w fields
  sed -n 's/^"Lease" : //p' <<<"$said"
}

step grant
grant 60
check "the id is positive" "$(decimal "$lease")" -gt 0

lacks own-id "etcdctl takes no id"

step attach
good put "$kept" 1 --lease="$lease"
good put "$left" 2 --lease="$lease"
equal "lease" "$(lease_of "$kept")" "$(decimal "$lease")"
equal "lease" "$(lease_of "$left")" "$(decimal "$lease")"

step ttl
good lease timetolive "$lease" --keys
remaining=$(sed -n 's/.*remaining(\([0-9]*\)s).*/\1/p' <<<"$said")
check "50 to 60 s remain" "$remaining" -ge 50
check "50 to 60 s remain" "$remaining" -le 60
equal "answer" "${said%, attached keys*}" "lease $lease granted with TTL(60s), remaining(${remaining}s)"
# etcd gives them in no order.
keys=$(sed 's/.*attached keys(\[\(.*\)\])/\1/' <<<"$said" | tr ' ' '\n' | sort | tr '\n' ' ')
equal "keys" "$keys" "$kept $left "

step leases
good lease list
equal "the lease in the list" "$(grep -c "^$lease$" <<<"$said")" 1

step keep-alive
says "lease $lease keepalived with TTL(60)" lease keep-alive --once "$lease"

step detach
good put "$left" 3
equal "lease" "$(lease_of "$left")" 0

step no-lease
refused "etcdserver: requested lease not found" put "$PREFIX/none" x --lease=1234567890abcdef
says "" get "$PREFIX/none"

step revoke
says "lease $lease revoked" lease revoke "$lease"
says "" get "$kept"
says "$left
3" get "$left"

step revoke-again
ctl lease revoke "$lease" </dev/null
check "it is refused" "$status" -ne 0
equal "refusal" "${erred##*failed to revoke lease (}" "etcdserver: requested lease not found)"

step gone
says "lease $lease already expired" lease timetolive "$lease"

step keep-alive-gone
ctl lease keep-alive --once "$lease" </dev/null
equal "answer" "$said$erred" "Error: etcdserver: requested lease not found"

step one-revision
grant 60
for name in b c a; do good put "$PREFIX/one/$name" "$name" --lease="$lease"; done
watch seen "$PREFIX/one/" --prefix
good lease revoke "$lease"
brings seen 1,2 "DELETE $PREFIX/one/a
DELETE $PREFIX/one/b
DELETE $PREFIX/one/c"
equal "revisions" "$(parts seen 4 | sort -u | wc -l)" 1
end
