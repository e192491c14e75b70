# The server is killed and started again under curl. Its watch ends with the connection; the application makes it again
# from the last revision that it saw.
source "$(dirname "$0")/support.sh"

leased=$PREFIX/leased
followed=$PREFIX/followed

step before
grant 300
bare=$lease
grant 15
put "$leased" mine "\"lease\":$lease"
renew "$lease" 1
watch seen "$followed/" "$(end_of "$followed/")"
put "$followed/0" 0
last=$(header)
brings seen 1,3,4 "PUT 0 $last"
pair=$(pair "$leased")
equal "lease" "$(cut -d ' ' -f 4 <<<"$pair")" "$lease"

step down
ask restart
readable() {
  call kv/range "{\"key\":\"$(b "$leased")\"}"
  [ "$code" = 200 ] && [ "$(pick .count)" = 1 ]
}
soon 15 "a get works again" readable

step stays
equal "pair" "$(pair "$leased")" "$pair"
check "the revision has not fallen" "$(header)" -ge "$last"
good lease/timetolive "{\"ID\":$bare}"
equal "granted to the lease without a key" "$(pick .grantedTTL)" 300
check "more than 200 s of it remain" "$(pick .TTL)" -gt 200

step watch
check "curl's watch has ended" "$(kill -0 "$streaming" 2>/dev/null && echo runs)" = ""
put "$followed/1" 1
put "$followed/2" 2
watch resumed "$followed/" "$(end_of "$followed/"),\"start_revision\":$((last + 1))"
put "$followed/3" 3
brings resumed 1,3 "PUT 1
PUT 2
PUT 3"
sleep 0.5
equal "events" "$(events resumed | wc -l)" 3
note "made again from the last revision + 1"

step alive
sleep 10
equal "pair" "$(pair "$leased")" "$pair"
good lease/timetolive "{\"ID\":$lease}"
check "8 s of 15 or more remain" "$(pick .TTL)" -ge 8
put "$followed/4" 4
brings resumed 1,3 "PUT 1
PUT 2
PUT 3
PUT 4"
end
