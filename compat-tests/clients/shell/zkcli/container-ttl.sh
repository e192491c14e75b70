# Containers (create -c) and nodes with a time to live (create -t).
source "$(dirname "$0")/support.sh"

open a
make_root a
gone() {
  zk a "stat $1"
  [ "$said" = "Node does not exist: $1" ]
}

step container
box=$PREFIX/box
says a "create -c $box" "Created $box"
says a "create $box/child" "Created $box/child"
says a "set $box value" ""
says a "get $box" value

step container-goes
says a "delete $box/child" ""
soon 5 "the container is gone" gone "$box"

step container-unused
says a "create -c $PREFIX/unused" "Created $PREFIX/unused"
sleep 3
stat a "$PREFIX/unused"
check "the container is there" -n "$(field cZxid)"

step ttl
says a "create -t 1500 $PREFIX/short value" "Created $PREFIX/short"
soon 6 "the node is gone" gone "$PREFIX/short"

step ttl-set
says a "create -t 1500 $PREFIX/kept 0" "Created $PREFIX/kept"
for number in 1 2 3 4 5 6; do
  sleep 0.5
  says a "set $PREFIX/kept $number" ""
done
says a "get $PREFIX/kept" 6

step ttl-sequential
zk a "create $PREFIX/queue"
says a "create -s -t 1500 $PREFIX/queue/n-" "Created $PREFIX/queue/n-0000000000"
soon 6 "the node is gone" gone "$PREFIX/queue/n-0000000000"
close a
end
