# curl against etcd's JSON gateway: the answer in $said, the HTTP status in $code. Numbers of 64 bits are texts there,
# keys and values base64, and what is zero or empty is left out.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# curl asks one server; of a cluster the first.
ADDRESS=${ADDRESS%%,*}
token=

# call PATH BODY
call() {
  said=$(curl -sS --max-time 20 -w '\n%{http_code}' ${token:+-H "Authorization: $token"} --data-binary @- \
    "http://$ADDRESS/v3/$1" <<<"$2" 2>&1)
  code=${said##*$'\n'}
  said=${said%$'\n'*}
}

# good PATH BODY: it is answered with 200.
good() {
  call "$@"
  [ "$code" = 200 ] || fail "/v3/$1: HTTP $code: $said"
}

# refused WORDS PATH BODY: it is refused with these words of the server.
refused() {
  call "$2" "$3"
  [ "$code" != 200 ] || fail "expected the refusal '$1', saw '$said'"
  equal "refusal" "$(pick .message || echo "HTTP $code: $said")" "$1"
}

pick() { jq -r "$1" <<<"$said" 2>/dev/null; }
b() { printf %s "$1" | base64 -w 0; }

put() { good kv/put "{\"key\":\"$(b "$1")\",\"value\":\"$(b "$2")\"${3:+,$3}}"; }
get() { good kv/range "{\"key\":\"$(b "$1")\"${2:+,$2}}"; }
del() { good kv/deleterange "{\"key\":\"$(b "$1")\"${2:+,$2}}"; }

# end_of PREFIX: the member range_end for all keys that begin so; the prefix ends with a slash.
end_of() { echo "\"range_end\":\"$(b "${1%/}0")\""; }

# The pairs in $said, a line each: create revision, mod revision, version, lease, value.
pairs() { pick '.kvs // [] | .[] | "\(.create_revision) \(.mod_revision) \(.version) \(.lease // 0) \(.value // "" | @base64d)"'; }

# pair KEY: its line, if it is there.
pair() {
  get "$1"
  pairs
}

header() { pick .header.revision; }

# revision: leaves the store's of now in $rev.
revision() {
  get "$PREFIX/none"
  rev=$(header)
  number "$rev"
}

# grant SECONDS: leaves the new lease's id in $lease.
grant() {
  good lease/grant "{\"TTL\":$1}"
  lease=$(pick .ID)
  equal "TTL" "$(pick .TTL)" "$1"
  check "the id is positive" "$lease" -gt 0
}

keep_alive() { good lease/keepalive "{\"ID\":$1}"; }

# renew ID SECONDS: renews the lease in the background, leaving the loop's process in $renewing.
renew() {
  while true; do
    pause "$2"
    curl -s --max-time 2 -o "$work/renewed-$1" -d "{\"ID\":$1}" "http://$ADDRESS/v3/lease/keepalive" </dev/null || true
  done &
  renewing=$!
  children+=($!)
}

# stream NAME PATH BODY: leaves a call running whose answer goes on; it is in $work/NAME.
stream() {
  curl -sSN -o "$work/$1" --data-binary "$3" "http://$ADDRESS/v3/$2" 2>"$work/$1.err" </dev/null &
  streaming=$!
  children+=($!)
}

# watch NAME KEY [MEMBERS]: a watch that is made when this returns.
watch() {
  stream "$1" watch "{\"create_request\":{\"key\":\"$(b "$2")\"${3:+,$3}}}"
  soon 5 "the watch $1 is made" created "$1"
}

created() { [ "$(jq -r 'select(.result.created) | "yes"' "$work/$1" 2>/dev/null)" = yes ]; }

# events NAME: a line each: type, key, value, mod revision, version, value before.
events() {
  jq -r '.result.events[]? | "\(.type // "PUT") \(.kv.key | @base64d) \(.kv.value // "" | @base64d) \(.kv.mod_revision) \(.kv.version // 0) \(.prev_kv.value // "" | @base64d)"' \
    "$work/$1" 2>/dev/null | sed 's/ *$//'
}

count() {
  get "$1" "${2:-}"
  pick '.count // 0'
}

gone() { [ "$(count "$1")" = 0 ]; }
