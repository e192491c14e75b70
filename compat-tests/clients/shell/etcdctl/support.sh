# etcdctl: answers in $said, errors in $erred. ETCDCTL is its command, in words.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
read -ra etcdctl <<<"${ETCDCTL:-etcdctl}"

# ctl ARGUMENT...: runs it, with what is on standard input.
ctl() {
  said=$(timeout 20 "${etcdctl[@]}" --endpoints="$ADDRESS" "$@" 2>"$work/err")
  status=$?
  erred=$(tail -n 1 "$work/err")
}

# knows COMMAND OPTION: this release of etcdctl has it.
knows() { "${etcdctl[@]}" "$1" --help 2>/dev/null | grep -q -- "$2"; }

# good ARGUMENT...: it succeeds.
good() {
  ctl "$@" </dev/null
  [ $status -eq 0 ] || fail "etcdctl $*: $erred"
}

# says WANTED ARGUMENT...: it succeeds and prints exactly this.
says() {
  local wanted=$1
  shift
  good "$@"
  equal "etcdctl $*" "$said" "$wanted"
}

# refused WORDS ARGUMENT...: it fails with these words of the server.
refused() {
  local words=$1
  shift
  ctl "$@" </dev/null
  [ $status -ne 0 ] || fail "expected the refusal '$words', saw '$said'"
  equal "refusal" "$erred" "Error: $words"
}

# json ARGUMENT...: it succeeds; the answer is JSON, with keys and values in base64.
json() { good "$@" -w json; }

# pick FILTER: of the JSON in $said, by jq. Numbers above 2^53 lose digits there: ids are read from other forms.
pick() { jq -r "$1" <<<"$said"; }

# revision: leaves the store's of now in $rev.
revision() {
  json get "$PREFIX/none"
  rev=$(pick .header.revision)
  number "$rev"
}

# pair KEY: create revision, mod revision, version, lease and value, where there is a pair.
pair() {
  json get "$1"
  pick '.kvs // [] | .[] | "\(.create_revision) \(.mod_revision) \(.version) \(.lease // 0) \(.value // "" | @base64d)"'
}

# grant SECONDS: leaves the new lease's id in $lease.
grant() {
  good lease grant "$1"
  lease=$(sed -n "s/^lease \([0-9a-f]*\) granted with TTL($1s)\$/\1/p" <<<"$said")
  check "a lease of $1 s is granted: $said" -n "$lease"
}

# start NAME ARGUMENT...: leaves it running; output in $work/NAME.
start() {
  local name=$1
  shift
  "${etcdctl[@]}" --endpoints="$ADDRESS" "$@" >"$work/$name" 2>"$work/$name.err" </dev/null &
  started=$!
  children+=($!)
}

# watch NAME ARGUMENT...: a watch whose events come as lines `TYPE KEY VALUE MOD_REVISION VERSION PREVIOUS`. It begins
# at the next revision unless the arguments say one: etcdctl does not tell when a watch is made.
watch() {
  local name=$1
  shift
  case " $* " in *" --rev="*) ;; *) revision; set -- "$@" --rev="$((rev + 1))" ;; esac
  start "$name" watch -w json "$@"
}

# events NAME: what a watch brought so far.
events() {
  jq -r '.Events[]? | "\(if (.type // 0) == 0 then "PUT" else "DELETE" end) \(.kv.key | @base64d) \(.kv.value // "" | @base64d) \(.kv.mod_revision) \(.kv.version // 0) \(.prev_kv.value // "" | @base64d)"' \
    "$work/$1" 2>/dev/null | sed 's/ *$//'
}

gone() {
  good get "$1"
  [ -z "$said" ]
}

has() { grep -q "$2" "$work/$1"; }

# has_value KEY VALUE
has_value() {
  good get "$1" --print-value-only
  [ "$said" = "$2" ]
}
