# etcdctl make-mirror, with one server as source and destination.
source "$(dirname "$0")/support.sh"

one=$PREFIX/one/ two=$PREFIX/two/ three=$PREFIX/three/ four=$PREFIX/four/

# content PREFIX: names below it and values, in lines.
content() { "${etcdctl[@]}" --endpoints="$ADDRESS" get --prefix "$1" 2>/dev/null </dev/null | sed "s|^$1||"; }
same() { [ -n "$(content "$1")" ] && [ "$(content "$1")" = "$(content "$2")" ]; }

# mirror NAME FROM TO ARGUMENT...: leaves it running.
mirror() {
  local name=$1 from=$2 to=$3
  shift 3
  start "$name" make-mirror --prefix="$from" --dest-prefix="$to" "$@" "$ADDRESS"
}

# transaction LINES: it is done.
transaction() {
  ctl txn < <(printf '\n%s\n\n\n' "$1")
  [ $status -eq 0 ] || fail "txn: $erred"
}

step base
for hundred in {0..2}; do
  transaction "$(for number in {0..99}; do echo "put ${one}$hundred-$number value-$hundred-$number"; done)"
done
mirror first "$one" "$two"
mirroring=$started
soon 25 "the base is there" same "$one" "$two"
equal "keys" "$(content "$two" | wc -l)" 600

step live
good put "${one}new" 1
good put "${one}0-0" changed
good del "${one}0-1"
transaction "put ${one}a 1
put ${one}b 2
del ${one}0-2"
soon 5 "the second follows" same "$one" "$two"

step stopped
kill -9 "$mirroring"
wait "$mirroring" 2>/dev/null
revision
known=$rev
good del "${one}0-3"
good put "${one}0-3" again
good del "${one}0-4"
good put "${one}late" x
if knows make-mirror --rev; then
  mirror second "$one" "$two" --rev="$((known + 1))"
  soon 10 "the second is as the first" same "$one" "$two"
else
  mirror second "$one" "$two"
  soon 10 "what was made anew" has_value "${two}late" x
  good del "${two}0-4"
  soon 5 "the second is as the first" same "$one" "$two"
fi

step back
mirror third "$two" "$three"
mirror fourth "$three" "$four"
soon 15 "the third" same "$two" "$three"
soon 15 "the fourth" same "$three" "$four"
good del "${one}1-1"
soon 5 "the second follows" same "$one" "$two"
soon 5 "the third follows" same "$two" "$three"
soon 5 "the fourth follows" same "$three" "$four"
good get "${four}1-1"
equal "what was deleted" "$said" ""
end
