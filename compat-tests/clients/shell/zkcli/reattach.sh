# A session over a link that is cut for a while; the command line's watches are set anew by its client.
source "$(dirname "$0")/support.sh"

open b
make_root b
w=$PREFIX/w
p=$PREFIX/p

step created
zk b "create $w before"
zk b "create $p"
open a "$LINK" 10000
id=$(session a)
says a "create -e $PREFIX/ephemeral" "Created $PREFIX/ephemeral"
stat b "$PREFIX/ephemeral"
made=$said
says a "get -w $w" before
says a "ls -w $p" "[]"

step away
ask cut
zk b "set $w missed"
zk b "create $p/child"
sleep 2
ask mend

step same
back() { [ "$(grep -c "Session establishment complete" "$work/a.out")" -ge 2 ]; }
soon 10 "A is connected again" back
equal "session" "$(session a)" "$id"

step stays
says b "stat $PREFIX/ephemeral" "$made"

step data-watch
of() { events a | grep -c " $1$"; }
came() { [ "$(of "$w")" -ge 1 ] && [ "$(of "$p")" -ge 1 ]; }
soon 5 "both events" came
sleep 1
equal "events of W" "$(events a | grep " $w$")" "NodeDataChanged $w"

step child-watch
equal "events of P" "$(events a | grep " $p$")" "NodeChildrenChanged $p"

step works
says a "create $PREFIX/after after" "Created $PREFIX/after"
says a "get $PREFIX/after" after
close a
close b
end
