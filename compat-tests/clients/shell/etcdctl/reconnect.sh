# A connection that is cut and comes back under etcdctl's keep-alive and watch.
source "$(dirname "$0")/support.sh"

leased=$PREFIX/leased
followed=$PREFIX/followed
direct=$ADDRESS

step before
grant 15
ADDRESS=$LINK
start keeper lease keep-alive "$lease"
good put "$leased" mine --lease="$lease"
watch seen "$followed/" --prefix
ADDRESS=$direct
good put "$followed/0" 0
brings seen 1,3 "PUT 0"
pair=$(pair "$leased")

step away
ask cut
for number in 1 2 3; do good put "$followed/$number" "$number"; done
good del "$followed/2"
sleep 2
ask mend

step missed
brings seen 1,2 "PUT $followed/0
PUT $followed/1
PUT $followed/2
PUT $followed/3
DELETE $followed/2" 15
sleep 0.5
equal "events" "$(events seen | wc -l)" 5

step alive
sleep 8
equal "pair" "$(pair "$leased")" "$pair"
good lease timetolive "$lease"
remaining=$(sed -n 's/.*remaining(\([0-9]*\)s).*/\1/p' <<<"$said")
check "8 s of 15 or more remain" "$remaining" -ge 8
good put "$followed/4" 4
brings seen 1,2 "PUT $followed/0
PUT $followed/1
PUT $followed/2
PUT $followed/3
DELETE $followed/2
PUT $followed/4"
end
