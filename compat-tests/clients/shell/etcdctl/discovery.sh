# Instances under leases in the form of etcd's naming package, and a reader with a prefix watch.
source "$(dirname "$0")/support.sh"

declare -A leases keepers
value() { printf '{"Op":0,"Addr":"127.0.0.1:%s","Metadata":%s}' "$1" "${2:-null}"; }
register() { # register PORT [SECONDS]
  grant "${2:-10}"
  leases[$1]=$lease
  start "keeper-$1" lease keep-alive "$lease"
  keepers[$1]=$started
  good put "$PREFIX/127.0.0.1:$1" "$(value "$1")" --lease="$lease"
}
deregister() {
  good lease revoke "${leases[$1]}"
}
# The list: a watch from the start, folded.
listed() {
  events reader | awk '{ if ($1 == "PUT") at[$2] = $3; else delete at[$2] } END { for (key in at) print key, at[key] }' | sort
}
ports_are() { # ports_are PORT...
  local wanted
  wanted=$(for port in "$@"; do echo "$PREFIX/127.0.0.1:$port $(value "$port")"; done)
  [ "$(listed)" = "$wanted" ]
}

step empty
says "" get "$PREFIX/" --prefix
watch reader "$PREFIX/" --prefix
equal "list" "$(listed)" ""

step registered
for port in 7001 7002 7003; do register $port; done
soon 3 "three instances" ports_are 7001 7002 7003

lacks called "etcdctl has no resolver"

step left
deregister 7001
soon 2 "two instances" ports_are 7002 7003

step updated
good put "$PREFIX/127.0.0.1:7002" "$(value 7002 '{"weight":7}')" --lease="${leases[7002]}"
metadata() { listed | grep -q '7002 .*"Metadata":{"weight":7}}$'; }
soon 3 "the new metadata" metadata
good put "$PREFIX/127.0.0.1:7002" "$(value 7002)" --lease="${leases[7002]}"

step died
register 7004 3
register 7005
soon 3 "four instances" ports_are 7002 7003 7004 7005
kill -9 "${keepers[7004]}"
soon 8 "three instances" ports_are 7002 7003 7005

step all-left
for port in 7002 7003 7005; do deregister $port; done
soon 3 "no instance" ports_are
says "" get "$PREFIX/" --prefix
end
