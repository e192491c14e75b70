# Nodes, values and Stats with ZooKeeper's command line, which takes printable values only.
source "$(dirname "$0")/support.sh"

open a
open b
make_root a
node=$PREFIX/node
value='one two'

step create
says a "create $node \"$value\"" "Created $node"
note "printable values: a command line takes no other"

step get
zk a "get -s $node"
equal "value" "$(head -n 1 <<<"$said")" "$value"
first=$(tail -n +2 <<<"$said")
said=$first
equal "version, cversion, aversion" "$(field dataVersion) $(field cversion) $(field aclVersion)" "0 0 0"
equal "owner, length, children" "$(field ephemeralOwner) $(field dataLength) $(field numChildren)" "0x0 7 0"
check "cZxid is above 0" "$(decimal cZxid)" -gt 0
equal "mZxid and pZxid" "$(field mZxid) $(field pZxid)" "$(field cZxid) $(field cZxid)"
equal "mtime" "$(field mtime)" "$(field ctime)"
age=$(($(date +%s) - $(date -d "$(field ctime)" +%s)))
check "ctime is now" "${age#-}" -lt 60
created=$(decimal cZxid)

step set
zk a "set -s -v 0 $node changed"
equal "version" "$(field dataVersion)" 1
check "mZxid is above cZxid" "$(decimal mZxid)" -gt "$created"
rest() { grep -v '^mZxid\|^mtime\|^dataVersion\|^dataLength'; }
equal "the rest" "$(rest <<<"$said")" "$(rest <<<"$first")"
now_is=$said

step bad-version
says a "set -v 7 $node other" "version No is not valid : $node"
says a "delete -v 7 $node" "version No is not valid : $node"
says a "get -s $node" "changed
$now_is"

step any-version
says a "set -v -1 $node third" ""
says a "get $node" "third"

step exists
zk a "get -s $node"
says a "stat $node" "$(tail -n +2 <<<"$said")"
says a "stat $PREFIX/none" "Node does not exist: $PREFIX/none"

step no-node
for command in "get $PREFIX/none" "set $PREFIX/none x" "delete $PREFIX/none" "ls $PREFIX/none"; do
  says a "$command" "Node does not exist: $PREFIX/none"
done
says a "create $PREFIX/none/child" "Node does not exist: $PREFIX/none/child"

step node-exists
says a "create $node" "Node already exists: $node"

step empty-data
says a "create $PREFIX/empty \"\"" "Created $PREFIX/empty"
zk a "get -s $PREFIX/empty"
equal "length" "$(field dataLength)" 0
equal "value, which is shown as an empty line" "$(head -n 1 <<<"$said" | cut -d ' ' -f 1)" cZxid

step large-data
large=$(head -c 1000000 /dev/zero | tr '\0' x)
zk a "create $PREFIX/large $large"
equal "answer" "$said" "Created $PREFIX/large"
zk b "get $PREFIX/large"
[ "$said" = "$large" ] || fail "the value came back as ${#said} characters"

step children
parent=$PREFIX/parent
zk a "create $parent"
for name in a b c; do zk a "create $parent/$name"; done
stat a "$parent/c"
last=$(decimal cZxid)
zk a "ls -s $parent"
names=$(head -n 1 <<<"$said" | tr -d '[],' | tr ' ' '\n' | sort | tr '\n' ' ')
equal "names" "$names" "a b c "
equal "numChildren and cversion" "$(field numChildren) $(field cversion)" "3 3"
equal "pZxid" "$(decimal pZxid)" "$last"
before=$said

step child-deleted
says a "delete $parent/b" ""
stat a "$parent"
equal "numChildren and cversion" "$(field numChildren) $(field cversion)" "2 4"
check "pZxid rises" "$(decimal pZxid)" -gt "$last"
for name in mZxid dataVersion; do
  equal "$name" "$(field $name)" "$(sed -n "s/^$name = //p" <<<"$before")"
done

step child-changed
before=$said
zk a "set $parent/a changed"
stat a "$parent"
equal "the parent's Stat" "$said" "$before"

step not-empty
says a "delete $parent" "Node not empty: $parent"

step sequential
zk a "create $PREFIX/queue"
says a "create -s $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000000"
says a "create -s $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000001"
says a "create -s $PREFIX/queue/m-" "Created $PREFIX/queue/m-0000000002"

step sequential-after
says a "delete $PREFIX/queue/m-0000000002" ""
says a "create -s $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000003"

step ephemeral
says a "create -e $PREFIX/ephemeral" "Created $PREFIX/ephemeral"
stat b "$PREFIX/ephemeral"
equal "ephemeralOwner" "$(field ephemeralOwner)" "$(session a)"

step no-children
says a "create $PREFIX/ephemeral/child" "Ephemerals cannot have children: $PREFIX/ephemeral/child"

step bad-path
for path in /a//b /a/../b; do
  zk a "create $path"
  case $said in "Invalid path string \"$path\""*) ;; *) fail "create $path: $said" ;; esac
done
says a "get $node" third

step sync
zk b "set $node by-b"
says a "sync $node" "Sync is OK"
says a "get $node" by-b

step delete
says a "deleteall $PREFIX" ""
says a "stat $PREFIX" "Node does not exist: $PREFIX"
close a
close b
end
