# etcdctl snapshot save. Debian's etcdctl 3.4 reads what the newer one saved: etcdutl is a program of its own since.
source "$(dirname "$0")/support.sh"

# save FILE: its parts are $bytes before the checksum.
save() {
  good snapshot save "$1"
  check "the file is there" -s "$1"
  bytes=$(($(stat -c %s "$1") - 32))
  check "it has a database" "$bytes" -gt 0
  equal "checksum" "$(tail -c 32 "$1" | od -An -v -tx1 | tr -d ' \n')" "$(head -c "$bytes" "$1" | sha256sum | cut -d ' ' -f 1)"
}

# status FILE: revision and number of keys, after etcdctl has checked it.
status() {
  ETCDCTL_API=3 /usr/bin/etcdctl snapshot status "$1" -w json >"$work/status" 2>"$work/err" </dev/null ||
    fail "snapshot status: $(tail -n 1 "$work/err")"
  jq -r "$2" "$work/status"
}

step saved
good put "$PREFIX/one" first-value-of-the-snapshot
json get "$PREFIX/one"
rev=$(pick '.kvs[0].mod_revision')
save "$work/first"

step holds
check "its revision" "$(status "$work/first" .revision)" -ge "$rev"
check "the value is in it" "$(grep -c -a first-value-of-the-snapshot "$work/first")" -gt 0
keys=$(status "$work/first" .totalKey)
check "it has keys" "$keys" -gt 0

step later
good put "$PREFIX/two" second-value-of-the-snapshot
save "$work/second"
check "its revision" "$(status "$work/second" .revision)" -gt "$rev"
check "the first is in it" "$(grep -c -a first-value-of-the-snapshot "$work/second")" -gt 0
check "the second is in it" "$(grep -c -a second-value-of-the-snapshot "$work/second")" -gt 0
end
