# One-shot watches set by stat -w, which asks whether a node exists.
source "$(dirname "$0")/support.sh"

open a
open b
make_root b
node=$PREFIX/node

step created
says a "stat -w $node" "Node does not exist: $node"
zk b "create $node 0"
event a NodeCreated "$node"
silent a 0.3

step changed
zk a "stat -w $node"
zk b "set $node 1"
event a NodeDataChanged "$node"
silent a 0.3

step deleted
zk a "stat -w $node"
zk b "delete $node"
event a NodeDeleted "$node"
silent a 0.3

step children-silent
zk b "create $node 0"
zk a "stat -w $node"
zk b "create $node/child"
silent a 1
close a
close b
end
