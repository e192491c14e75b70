# Access lists with ZooKeeper's command line.
source "$(dirname "$0")/support.sh"

open a
open b
open c
make_root a
node=$PREFIX/secret
hash=$(printf user:secret | sha1sum | cut -d ' ' -f 1 | sed 's/../\\x&/g')
hash=$(printf "$hash" | base64)

# acl NAME PATH: the list alone.
acl() {
  zk "$1" "getAcl $2"
  said=$(tr '\n' ' ' <<<"$said")
}

step open
zk a "create $PREFIX/open"
acl a "$PREFIX/open"
equal "list" "$said" "'world,'anyone : cdrwa "
stat a "$PREFIX/open"
equal "aversion" "$(field aclVersion)" 0

step digest
says a "addauth digest user:secret" ""
says a "create $node value auth::cdrwa" "Created $node"

step shown
acl a "$node"
equal "list" "$said" "'digest,'user:$hash : cdrwa "

step own
says a "get $node" value
says a "set $node changed" ""

step stranger
for command in "get $node" "set $node x"; do
  says b "$command" "Insufficient permission : $node"
done

step admitted
says b "addauth digest user:secret" ""
says b "get $node" changed

step changed
zk a "setAcl -s -v 0 $node world:anyone:r"
equal "aversion" "$(field aclVersion)" 1
says c "get $node" changed
says c "set $node x" "Insufficient permission : $node"

step bad-version
says a "setAcl -v 7 $PREFIX/open world:anyone:cdrwa" "version No is not valid : $PREFIX/open"
stat a "$PREFIX/open"
equal "aversion" "$(field aclVersion)" 0
# Who may administrate is asked before the version.
says a "setAcl -v 7 $node world:anyone:cdrwa" "Insufficient permission : $node"
stat a "$node"
equal "aversion of the other" "$(field aclVersion)" 1
close a
close b
close c
end
