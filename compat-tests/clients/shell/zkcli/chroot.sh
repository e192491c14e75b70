# A chroot at the end of the server's address.
source "$(dirname "$0")/support.sh"

open b

step missing
open lost "$ADDRESS$PREFIX/none"
says lost "create /node" "Node does not exist: /node"

step works
make_root b
open a "$ADDRESS$PREFIX"
says a "create /node value" "Created /node"
says a "get /node" value
says a "ls /" "[node]"
says b "ls $PREFIX" "[node]"
says b "get $PREFIX/node" value

step watch
says a "get -w /node" value
zk b "set $PREFIX/node new"
event a NodeDataChanged /node
says a "ls -w /" "[node]"
zk b "create $PREFIX/more"
event a NodeChildrenChanged /
close lost
close a
close b
end
