# One-shot watches on the list of children, set by ls -w.
source "$(dirname "$0")/support.sh"

open a
open b
make_root b
node=$PREFIX/node
zk b "create $node"

step created
says a "ls -w $node" "[]"
zk b "create $node/child"
event a NodeChildrenChanged "$node"
silent a 0.3

step deleted
says a "ls -w $node" "[child]"
zk b "delete $node/child"
event a NodeChildrenChanged "$node"
silent a 0.3

step data-silent
zk b "create $node/child"
says a "ls -w $node" "[child]"
zk b "set $node/child 1"
zk b "set $node 1"
silent a 1

step grandchild-silent
zk b "create $node/child/grandchild"
silent a 1

step parent-deleted
# The watch is still there: nothing has fired it. Its events are those of the three deletes, one for the watch.
zk b "delete $node/child/grandchild"
zk b "delete $node/child"
event a NodeChildrenChanged "$node"
says a "ls -w $node" "[]"
zk b "delete $node"
event a NodeDeleted "$node"
silent a 0.3

step ephemeral
zk b "create $node"
open c
zk c "create -e $node/ephemeral"
says a "ls -w $node" "[ephemeral]"
echo quit >&"${pipe[c]}"
event a NodeChildrenChanged "$node" 3
says a "ls $node" "[]"

step follow
says a "ls -w $node" "[]"
for number in {10..29}; do echo "create $node/$number"; done >&"${pipe[b]}"
follow() {
  if more_events a; then
    event a NodeChildrenChanged "$node"
    zk a "ls -w $node"
    listed=$(tr -d '[],' <<<"$said" | tr ' ' '\n' | sort | tr '\n' ' ')
  fi
  [ "$listed" = "$wanted" ]
}
listed=
wanted=$(printf '%s ' {10..29})
soon 15 "A has all 20" follow
close a
close b
end
