# Watches with etcdctl.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key

step put
watch one "$key"
json put "$key" 1
at=$(pick .header.revision)
brings one 1-5 "PUT $key 1 $at 1"
sleep 0.3
equal "events" "$(events one | wc -l)" 1

step delete
json del "$key"
gone_at=$(pick .header.revision)
brings one 1,2 "PUT $key
DELETE $key"
equal "the last response" "$(tail -n 1 "$work/one" | jq -c '.Events[] | [.type, .kv.mod_revision, .kv.value]')" "[1,$gone_at,null]"

step prefix
watch below "$PREFIX/p/" --prefix
for name in b a c; do good put "$PREFIX/p/$name" "$name"; done
good put "$PREFIX/p0" beside
brings below 1-3 "PUT $PREFIX/p/b b
PUT $PREFIX/p/a a
PUT $PREFIX/p/c c"
equal "order of revisions" "$(parts below 4)" "$(parts below 4 | sort -n)"
sleep 1
equal "events" "$(events below | wc -l)" 3

step prev-kv
watch previous "$key" --prev-kv
good put "$key" 1
good put "$key" 2
good del "$key"
soon 5 "three events" eval '[ "$(events previous | wc -l)" -eq 3 ]'
equal "values before" "$(jq -r '.Events[] | .prev_kv.value // "" | @base64d' "$work/previous" | tr '\n' ' ')" " 1 2 "

lacks filters "etcdctl has no such option"

step history
json put "$key" 1
at=$(pick .header.revision)
good put "$key" 2
good del "$key"
watch past "$key" --rev="$at"
brings past 1-2 "PUT $key
PUT $key
DELETE $key"
equal "the first revision" "$(parts past 4 | head -n 1)" "$at"
good put "$key" 3
brings past 1-2 "PUT $key
PUT $key
DELETE $key
PUT $key"

step txn
good put "$PREFIX/t/a" old
watch changes "$PREFIX/t/" --prefix
ctl txn -w json < <(printf '\nput %s/t/c 0\ndel %s/t/a\nput %s/t/b 2\n\n\n' "$PREFIX" "$PREFIX" "$PREFIX")
[ $status -eq 0 ] || fail "txn: $erred"
at=$(pick .header.revision)
brings changes 1,2 "PUT $PREFIX/t/c
DELETE $PREFIX/t/a
PUT $PREFIX/t/b"
equal "revisions" "$(jq '.Events[].kv.mod_revision' "$work/changes" | sort -u)" "$at"

step many
# Interactive: several watches of one client; their events come in the simple form.
revision
from=$((rev + 1))
mkfifo "$work/many.in"
"${etcdctl[@]}" --endpoints="$ADDRESS" watch -i <"$work/many.in" >"$work/many" 2>"$work/many.err" &
children+=($!)
exec {many}>"$work/many.in"
for name in a b c; do echo "watch $PREFIX/m/$name --rev=$from"; done >&"$many"
for name in a b c; do good put "$PREFIX/m/$name" "$name"; done
wanted=$(for name in a b c; do printf 'PUT %s/m/%s %s\n' "$PREFIX" "$name" "$name"; done)
three() { [ "$(paste -d ' ' - - - <"$work/many" | sort)" = "$wanted" ]; }
soon 5 "an event for each of three watches" three
sleep 0.3
three || fail "another event: $(tr '\n' ' ' <"$work/many")"

lacks cancel "etcdctl has no word that ends one of its watches"

step burst
watch burst "$PREFIX/burst/" --prefix
# etcdctl writes one key a process; a transaction may hold 128 operations: 500 puts in five of 100.
for hundred in 0 1 2 3 4; do
  ctl txn < <(
    echo
    for number in {00..99}; do echo "put $PREFIX/burst/$hundred$number $hundred$number"; done
    printf '\n\n'
  )
  [ $status -eq 0 ] || fail "txn: $erred"
done
wanted=$(for hundred in 0 1 2 3 4; do for number in {00..99}; do echo "PUT $PREFIX/burst/$hundred$number $hundred$number"; done; done)
brings burst 1-3 "$wanted" 10
note "500 puts in five transactions"
end
