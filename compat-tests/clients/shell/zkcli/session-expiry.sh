# A session that is cut off for longer than its timeout. The command line is told, and stays without a session.
source "$(dirname "$0")/support.sh"

open b
make_root b
node=$PREFIX/ephemeral

step created
open a "$LINK" 4000
id=$(session a)
says a "create -e $node" "Created $node"
zk b "stat -w $node"
equal "owner" "$(field ephemeralOwner)" "$id"

step kept
ask cut
cut=$(now)
sleep 1.5
zk b "stat $node"
equal "owner" "$(field ephemeralOwner)" "$id"
silent b 0

step gone
event b NodeDeleted "$node" 9
after=$(($(now) - cut))
check "the node went 2 s after the cut or later" "$after" -ge 2000
check "the node went 9 s after the cut or sooner" "$after" -le 9000
says b "stat $node" "Node does not exist: $node"

step told
ask mend
soon 15 "A is told that its session has expired" grep -q "WatchedEvent state:Expired" "$work/a.out"

step again
open c "$LINK" 4000
check "the session is another" "$(session c)" != "$id"
says c "create -e $node" "Created $node"
stat b "$node"
equal "owner" "$(field ephemeralOwner)" "$(session c)"
close c
close b
end
