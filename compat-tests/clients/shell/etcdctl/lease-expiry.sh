# Expiry, and etcdctl's own keep-alive.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key

step expires
watch seen "$key"
granted=$(now)
grant 2
good put "$key" 1 --lease="$lease"
brings seen 1,2 "PUT $key
DELETE $key" 7
after=$(($(now) - granted))
check "the key went 1.5 s after the grant or later" "$after" -ge 1500
check "the key went 6 s after the grant or sooner" "$after" -le 6000
says "" get "$key"

step kept
grant 2
start keeper lease keep-alive "$lease"
keeper=$started
good put "$key" 2 --lease="$lease"
sleep 7
says "$key
2" get "$key"

step stopped
kill -9 "$keeper"
soon 7 "the key is gone" gone "$key"
end
