# Expiry, and a loop that renews, as a shell application would.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key

step expires
watch seen "$key"
granted=$(now)
grant 2
put "$key" 1 "\"lease\":$lease"
brings seen 1,2 "PUT $key
DELETE $key" 7
after=$(($(now) - granted))
check "the key went 1.5 s after the grant or later" "$after" -ge 1500
check "the key went 6 s after the grant or sooner" "$after" -le 6000
equal "the key" "$(pair "$key")" ""

step kept
grant 2
put "$key" 2 "\"lease\":$lease"
renew "$lease" 0.5
sleep 7
equal "value" "$(pair "$key" | cut -d ' ' -f 5)" 2

step stopped
kill -9 "$renewing"
soon 7 "the key is gone" gone "$key"
end
