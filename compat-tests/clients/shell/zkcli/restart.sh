# The server is killed and started again under ZooKeeper's command line.
source "$(dirname "$0")/support.sh"

open a "$ADDRESS" 20000
open b "$ADDRESS" 20000
make_root a

step before
ephemeral=$PREFIX/ephemeral
says a "create -e $ephemeral mine" "Created $ephemeral"
stat a "$ephemeral"
made=$said
zk a "create $PREFIX/queue"
says a "create -s $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000000"
zk a "create $PREFIX/watched before"
says a "get -w $PREFIX/watched" before
stat a "$PREFIX/watched"
newest=$(decimal cZxid)
ids="$(session a) $(session b)"

step down
ask restart
back() { [ "$(grep -c "Session establishment complete" "$work/$1.out")" -ge 2 ]; }
for name in a b; do soon 15 "$name is connected again" back $name; done
equal "sessions" "$(session a) $(session b)" "$ids"

step stays
says b "stat $ephemeral" "$made"
says b "get $ephemeral" mine
says b "get $PREFIX/watched" before

step watch
silent a 0.5
zk b "set $PREFIX/watched after"
event a NodeDataChanged "$PREFIX/watched"
silent a 1

step numbers
says b "create -s $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000001"
stat b "$PREFIX/queue/n-0000000001"
check "the new node's cZxid is above those before" "$(decimal cZxid)" -gt "$newest"

step ends
gone() {
  zk b "stat $ephemeral"
  [ "$said" = "Node does not exist: $ephemeral" ]
}
echo quit >&"${pipe[a]}"
soon 3 "the ephemeral node is gone" gone
close b
end
