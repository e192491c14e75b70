# One-shot watches on a value, set by get -w.
source "$(dirname "$0")/support.sh"

open a
open b
make_root b
node=$PREFIX/node
zk b "create $node 0"

step once
says a "get -w $node" 0
zk b "set $node 1"
zk b "set $node 2"
event a NodeDataChanged "$node"
silent a 1

step before
says a "get -w $node" 2
zk b "set $node 3"
shown() {
  zk a "get $node"
  [ "$said" = 3 ]
}
soon 5 "a get shows the change" shown
# Replies and events are printed by two threads: their order within a moment is not the server's.
event a NodeDataChanged "$node" 1
silent a 0.3

step again
for value in x y; do
  zk a "get -w $node"
  zk b "set $node $value"
  event a NodeDataChanged "$node"
done

step deleted
says a "get -w $node" y
zk b "delete $node"
event a NodeDeleted "$node"

step both
zk b "create $node 0"
says a "get -w $node" 0
says a "get -w $node" 0
zk b "set $node 1"
event a NodeDataChanged "$node"
silent a 1
note "the command line has one watcher object"

step none
says a "get -w $PREFIX/later" "Node does not exist: $PREFIX/later"
zk b "create $PREFIX/later"
silent a 1

step own
says a "get -w $node" 1
says a "set $node own" ""
event a NodeDataChanged "$node"
close a
close b
end
