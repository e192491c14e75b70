# Leases by the JSON gateway.
source "$(dirname "$0")/support.sh"

kept=$PREFIX/kept
left=$PREFIX/left
not_found="etcdserver: requested lease not found"

step grant
grant 60

step own-id
own=$((RANDOM * 32768 * 32768 + RANDOM * 32768 + RANDOM + 1))
good lease/grant "{\"TTL\":60,\"ID\":$own}"
equal "id and TTL" "$(pick '"\(.ID) \(.TTL)"')" "$own 60"
refused "etcdserver: lease already exists" lease/grant "{\"TTL\":60,\"ID\":$own}"
good lease/revoke "{\"ID\":$own}"

step attach
put "$kept" 1 "\"lease\":$lease"
put "$left" 2 "\"lease\":$lease"
equal "leases" "$(pair "$kept" | cut -d ' ' -f 4) $(pair "$left" | cut -d ' ' -f 4)" "$lease $lease"

step ttl
good lease/timetolive "{\"ID\":$lease,\"keys\":true}"
equal "granted" "$(pick .grantedTTL)" 60
check "50 s or more remain" "$(pick .TTL)" -ge 50
check "60 s or less remain" "$(pick .TTL)" -le 60
equal "keys" "$(pick '[.keys[] | @base64d] | sort | join(" ")')" "$kept $left"

step leases
good lease/leases '{}'
equal "the lease in the list" "$(pick "[.leases[] | select(.ID == \"$lease\")] | length")" 1

step keep-alive
keep_alive "$lease"
equal "id and TTL" "$(pick '.result | "\(.ID) \(.TTL)"')" "$lease 60"

step detach
put "$left" 3
equal "lease" "$(pair "$left" | cut -d ' ' -f 4)" 0

step no-lease
refused "$not_found" kv/put "{\"key\":\"$(b "$PREFIX/none")\",\"lease\":$own}"
equal "the key" "$(pair "$PREFIX/none")" ""

step revoke
good lease/revoke "{\"ID\":$lease}"
equal "the key that it held" "$(pair "$kept")" ""
equal "the detached one" "$(pair "$left" | cut -d ' ' -f 5)" 3

step revoke-again
refused "$not_found" lease/revoke "{\"ID\":$lease}"

step gone
good lease/timetolive "{\"ID\":$lease,\"keys\":true}"
equal "TTL, granted, keys" "$(pick '"\(.TTL) \(.grantedTTL // 0) \(.keys)"')" "-1 0 null"

step keep-alive-gone
keep_alive "$lease"
equal "id and TTL, which is left out when it is 0" "$(pick '.result | "\(.ID) \(.TTL // 0)"')" "$lease 0"

step one-revision
grant 60
for name in b c a; do put "$PREFIX/one/$name" "$name" "\"lease\":$lease"; done
watch seen "$PREFIX/one/" "$(end_of "$PREFIX/one/")"
good lease/revoke "{\"ID\":$lease}"
brings seen 1,2 "DELETE $PREFIX/one/a
DELETE $PREFIX/one/b
DELETE $PREFIX/one/c"
equal "revisions" "$(jq -r '.result.events[]?.kv.mod_revision' "$work/seen" | sort -u | wc -l)" 1
end
