# Persistent watches, set by addWatch.
source "$(dirname "$0")/support.sh"

open a
open b
make_root b
node=$PREFIX/node
zk b "create $node 0"

step persistent
says a "addWatch -m PERSISTENT $node" ""
zk b "set $node 1"
zk b "set $node 2"
zk b "create $node/child"
event a NodeDataChanged "$node"
event a NodeDataChanged "$node"
event a NodeChildrenChanged "$node"
silent a 0.3

step stays-over-delete
zk b "delete $node/child"
zk b "delete $node"
zk b "create $node 0"
event a NodeChildrenChanged "$node"
event a NodeDeleted "$node"
event a NodeCreated "$node"
silent a 0.3

step recursive
tree=$PREFIX/tree
zk b "create $tree"
says a "addWatch -m PERSISTENT_RECURSIVE $tree" ""
zk b "create $tree/a"
zk b "create $tree/a/b"
zk b "set $tree/a/b 1"
zk b "delete $tree/a/b"
event a NodeCreated "$tree/a"
event a NodeCreated "$tree/a/b"
event a NodeDataChanged "$tree/a/b"
event a NodeDeleted "$tree/a/b"
silent a 0.5

step removed
says a "removewatches $node" ""
event a PersistentWatchRemoved "$node"
zk b "set $node 3"
silent a 1

step remove-none
says a "removewatches $PREFIX" "KeeperErrorCode = No such watcher for $PREFIX"
close a
close b
end
