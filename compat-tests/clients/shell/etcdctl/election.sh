# etcdctl elect: campaigns and leads until it is interrupted; elect -l observes.
source "$(dirname "$0")/support.sh"

name=$PREFIX/election
leads() { has "$1" "^$name/[0-9a-f]*$" && has "$1" "^$2$"; }

step one
start observer elect -l "$name"
start first elect "$name" one
first=$started
soon 5 "the first leads" leads first one
start second elect "$name" two
soon 5 "the observer sees it" has observer '^one$'
sleep 0.5
equal "what the second has" "$(<"$work/second")" ""

lacks proclaim "etcdctl has no such command"

step resign
kill -INT "$first"
soon 3 "the second leads" leads second two
soon 3 "the observer sees it" has observer '^two$'

step last
good lease revoke "$(sed -n "s|^$name/||p" "$work/second")"
none() {
  good get "$name/" --prefix
  [ -z "$said" ]
}
soon 3 "nobody leads" none
end
