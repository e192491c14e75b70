# The server is killed and started again under etcdctl's keep-alive and watch.
source "$(dirname "$0")/support.sh"

leased=$PREFIX/leased
followed=$PREFIX/followed

step before
grant 300
bare=$lease
grant 15
start keeper lease keep-alive "$lease"
good put "$leased" mine --lease="$lease"
watch seen "$followed/" --prefix
good put "$followed/0" 0
brings seen 1,3 "PUT 0"
good get "$leased" -w fields
pair=$(sed -n '/^"Key"/,$p' <<<"$said")
check "the key is under the lease" "$(sed -n 's/^"Lease" : //p' <<<"$pair")" = "$(printf %d "0x$lease")"
revision
before=$rev

step down
ask restart
readable() {
  ctl get "$leased" --print-value-only --command-timeout=2s </dev/null
  [ "$said" = mine ]
}
soon 15 "a get works again" readable

step stays
good get "$leased" -w fields
equal "pair" "$(sed -n '/^"Key"/,$p' <<<"$said")" "$pair"
revision
check "the revision has not fallen" "$rev" -ge "$before"
good lease timetolive "$bare"
equal "granted to the lease without a key" "$(sed -n 's/.*TTL(\([0-9]*\)s).*/\1/p' <<<"$said")" 300
check "more than 200 s of it remain" "$(sed -n 's/.*remaining(\([0-9]*\)s).*/\1/p' <<<"$said")" -gt 200

step watch
for number in 1 2 3; do good put "$followed/$number" "$number"; done
brings seen 1,3 "PUT 0
PUT 1
PUT 2
PUT 3" 15
sleep 0.5
equal "events" "$(events seen | wc -l)" 4

step alive
sleep 10
good get "$leased" -w fields
equal "pair" "$(sed -n '/^"Key"/,$p' <<<"$said")" "$pair"
good lease timetolive "$lease"
remaining=$(sed -n 's/.*remaining(\([0-9]*\)s).*/\1/p' <<<"$said")
check "8 s of 15 or more remain" "$remaining" -ge 8
good put "$followed/4" 4
brings seen 1,3 "PUT 0
PUT 1
PUT 2
PUT 3
PUT 4"
end
