# Sessions of ZooKeeper's own command line, each fed by a pipe and kept over several commands.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# The logger that says with which session and timeout it was connected.
classpath=${ZKCLI_CLASSPATH:-/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar}
declare -A pid pipe seen
marks=0

# open NAME [ADDRESS [TIMEOUT]]: starts a session; TIMEOUT in milliseconds.
open() {
  local name=$1 address=${2:-$ADDRESS} timeout=${3:-10000} to
  mkfifo "$work/$name.in"
  java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$classpath" org.apache.zookeeper.ZooKeeperMain \
    -server "$address" -timeout "$timeout" <"$work/$name.in" >"$work/$name.out" 2>&1 &
  pid[$name]=$!
  children+=($!)
  exec {to}>"$work/$name.in"
  pipe[$name]=$to
  seen[$name]=0
  soon 20 "$name is connected" grep -q "Session establishment complete" "$work/$name.out"
}

# close NAME: ends the session by the command line's own word.
close() {
  echo quit >&"${pipe[$1]}"
  soon 10 "$1 has ended" ended "${pid[$1]}"
}

ended() { ! kill -0 "$1" 2>/dev/null; }

# zk NAME COMMAND: runs it and leaves what it printed in $said, without log lines and events. A command that does not
# exist marks the end: its name comes back after everything before it.
zk() {
  local name=$1 from
  marks=$((marks + 1))
  from=$(wc -c <"$work/$name.out")
  printf '%s\nmark-%s\n' "$2" "$marks" >&"${pipe[$name]}"
  soon 15 "an answer to: ${2:0:200}" answered "$name" "$from"
  said=$(tail -c "+$((from + 1))" "$work/$name.out" | awk '
    /Command not found mark-/ { exit }
    /^\[.*\] (INFO|WARN|ERROR|DEBUG) / || /^(WATCHER::|WatchedEvent|\t|ZooKeeper -server|$)/ { next }
    { print }')
}

answered() { tail -c "+$(($2 + 1))" "$work/$1.out" | grep -q "Command not found mark-$marks\$"; }

# says NAME COMMAND WANTED: runs it; it prints exactly this.
says() {
  zk "$1" "$2"
  equal "$2" "$said" "$3"
}

# field NAME: of a Stat in $said.
field() { sed -n "s/^$1 = //p" <<<"$said"; }

# stat NAME PATH: leaves the Stat in $said.
stat() { zk "$1" "stat $2"; }

# decimal FIELD: of a Stat in $said, in decimal.
decimal() { echo $(($(field "$1"))); }

# events NAME: type and path of every event so far.
events() { sed -n 's/^WatchedEvent .*type:\([A-Za-z]*\) path:\([^ ]*\).*/\1 \2/p' "$work/$1.out" | grep -v '^None ' || true; }

more_events() { [ "$(events "$1" | wc -l)" -gt "${seen[$1]}" ]; }

# event NAME TYPE PATH [SECONDS]: the next event is this one.
event() {
  soon "${4:-5}" "the event $2 of $3" more_events "$1"
  seen[$1]=$((seen[$1] + 1))
  equal "event" "$(events "$1" | sed -n "${seen[$1]}p")" "$2 $3"
}

# silent NAME SECONDS: no event for so long.
silent() {
  sleep "$2"
  more_events "$1" && fail "expected no event, saw $(events "$1" | tail -n "+$((seen[$1] + 1))")"
  true
}

# make_root NAME: the scenario's own path, with its parents.
make_root() {
  local path= part
  for part in ${PREFIX//\// }; do
    path=$path/$part
    zk "$1" "create $path"
  done
  stat "$1" "$PREFIX"
  check "the scenario's root is there" -n "$(field cZxid)"
}

# session NAME: its id, as in a Stat.
session() { sed -n 's/.*Session establishment complete.* session id = \(0x[0-9a-f]*\).*/\1/p' "$work/$1.out" | tail -n 1; }
