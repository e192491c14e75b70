# Instances as ephemeral children with Curator's JSON, and a reader with ls -w.
source "$(dirname "$0")/support.sh"

service=${PREFIX##*/}
payload() { # payload PORT
  printf '{"name":"%s","id":"instance-%s","address":"127.0.0.1","port":%s,"sslPort":null,"payload":null,' "$service" "$1" "$2"
  printf '"registrationTimeUTC":1700000000000,"serviceType":"DYNAMIC","uriSpec":null}'
}
register() { # register PORT: a session of its own
  open "i$1"
  says "i$1" "create -e $PREFIX/instance-$1 '$(payload "$1" "$1")'" "Created $PREFIX/instance-$1"
}
# Ports by the values of all that is listed now.
ports() {
  local name found=
  zk reader "ls $PREFIX"
  for name in $(tr -d '[],' <<<"$said" | tr ' ' '\n' | sort); do
    zk reader "get $PREFIX/$name"
    found="$found$(sed 's/.*"port":\([0-9]*\).*/\1/' <<<"$said") "
  done
  listed=$found
}
ports_are() { ports && [ "$listed" = "$1 " ]; }

open reader

step empty
make_root reader
says reader "ls -w $PREFIX" "[]"

step registered
for port in 7001 7002 7003; do register $port; done
event reader NodeChildrenChanged "$PREFIX"
soon 3 "three instances" ports_are "7001 7002 7003"

step updated
zk reader "get -w $PREFIX/instance-7001"
says i7001 "set $PREFIX/instance-7001 '$(payload 7001 7101)'" ""
event reader NodeDataChanged "$PREFIX/instance-7001" 3
soon 3 "the new value" ports_are "7101 7002 7003"

step left
zk reader "ls -w $PREFIX"
says i7002 "delete $PREFIX/instance-7002" ""
event reader NodeChildrenChanged "$PREFIX" 2
soon 2 "two instances" ports_are "7101 7003"

step died
register 7004
register 7005
soon 3 "four instances" ports_are "7101 7003 7004 7005"
zk reader "ls -w $PREFIX"
echo quit >&"${pipe[i7004]}"
event reader NodeChildrenChanged "$PREFIX" 3
soon 3 "three instances" ports_are "7101 7003 7005"

step all-left
for port in 7001 7003 7005; do says i$port "delete $PREFIX/instance-$port" ""; done
says reader "ls $PREFIX" "[]"
end
