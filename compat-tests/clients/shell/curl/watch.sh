# Watches by the JSON gateway: a call each, whose answer goes on.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key

step put
watch one "$key"
put "$key" 1
at=$(header)
brings one 1-5 "PUT $key 1 $at 1"
sleep 0.3
equal "events" "$(events one | wc -l)" 1

step delete
del "$key"
at=$(header)
brings one 1,2 "PUT $key
DELETE $key"
equal "the delete" "$(jq -rs '[.[].result.events[]?] | last | "\(.type) \(.kv.mod_revision) \(.kv.value)"' "$work/one")" "DELETE $at null"
kill "$streaming"

step prefix
watch below "$PREFIX/p/" "$(end_of "$PREFIX/p/")"
for name in b a c; do put "$PREFIX/p/$name" "$name"; done
put "$PREFIX/p0" beside
brings below 1-3 "PUT $PREFIX/p/b b
PUT $PREFIX/p/a a
PUT $PREFIX/p/c c"
equal "order of revisions" "$(parts below 4)" "$(parts below 4 | sort -n)"
sleep 1
equal "events" "$(events below | wc -l)" 3
kill "$streaming"

step prev-kv
watch previous "$key" '"prev_kv":true'
put "$key" 1
put "$key" 2
del "$key"
three() { [ "$(events previous | wc -l)" -eq 3 ]; }
soon 5 "three events" three
equal "values before" "$(jq -r '.result.events[]? | .prev_kv.value // "" | @base64d' "$work/previous" | tr '\n' ' ')" " 1 2 "
kill "$streaming"

step filters
watch deletes "$key" '"filters":["NOPUT"]'
watch puts "$key" '"filters":["NODELETE"]'
put "$key" 1
put "$key" 2
del "$key"
brings deletes 1 DELETE
brings puts 1-3 "PUT $key 1
PUT $key 2"
sleep 0.3
equal "events" "$(events deletes | wc -l) $(events puts | wc -l)" "1 2"

step history
put "$key" 1
at=$(header)
put "$key" 2
del "$key"
watch past "$key" "\"start_revision\":$at"
brings past 1,2 "PUT $key
PUT $key
DELETE $key"
equal "the first revision" "$(parts past 4 | head -n 1)" "$at"
put "$key" 3
brings past 1,2 "PUT $key
PUT $key
DELETE $key
PUT $key"

step txn
put "$PREFIX/t/a" old
watch changes "$PREFIX/t/" "$(end_of "$PREFIX/t/")"
good kv/txn "{\"success\":[
  {\"requestPut\":{\"key\":\"$(b "$PREFIX/t/c")\",\"value\":\"MA==\"}},
  {\"requestDeleteRange\":{\"key\":\"$(b "$PREFIX/t/a")\"}},
  {\"requestPut\":{\"key\":\"$(b "$PREFIX/t/b")\",\"value\":\"Mg==\"}}]}"
at=$(header)
brings changes 1,2 "PUT $PREFIX/t/c
DELETE $PREFIX/t/a
PUT $PREFIX/t/b"
equal "revisions" "$(jq -r '.result.events[]?.kv.mod_revision' "$work/changes" | sort -u)" "$at"

step many
for name in a b c; do
  watch "many-$name" "$PREFIX/m/$name"
  [ $name != a ] || first=$streaming
done
for name in a b c; do put "$PREFIX/m/$name" "$name"; done
for name in a b c; do brings "many-$name" 1-3 "PUT $PREFIX/m/$name $name"; done
sleep 0.3
for name in a b c; do equal "events of $name" "$(events "many-$name" | wc -l)" 1; done

step cancel
# Three requests on one stream: two watches are made and the first of them is cancelled.
stream cancelled watch "{\"create_request\":{\"key\":\"$(b "$PREFIX/m/a")\",\"watch_id\":7}}
{\"create_request\":{\"key\":\"$(b "$PREFIX/m/b")\",\"watch_id\":8}}
{\"cancel_request\":{\"watch_id\":7}}"
confirmed() { [ "$(jq -r 'select(.result.canceled) | .result.watch_id' "$work/cancelled" 2>/dev/null)" = 7 ]; }
soon 5 "the cancel is confirmed" confirmed
kill "$first"
for name in a b c; do put "$PREFIX/m/$name" more; done
for name in b c; do
  brings "many-$name" 1-3 "PUT $PREFIX/m/$name $name
PUT $PREFIX/m/$name more"
done
brings cancelled 1-3 "PUT $PREFIX/m/b more"
sleep 1
equal "events of the stream with the cancelled one" "$(events cancelled | wc -l)" 1

step burst
watch burst "$PREFIX/burst/" "$(end_of "$PREFIX/burst/")"
# One curl makes many calls when its configuration names them.
for number in {000..499}; do
  [ "$number" = 000 ] || echo next
  echo "url = http://$ADDRESS/v3/kv/put"
  echo "data = \"{\\\"key\\\":\\\"$(b "$PREFIX/burst/$number")\\\",\\\"value\\\":\\\"$(b "$number")\\\"}\""
done >"$work/calls"
curl -sS --max-time 20 -K "$work/calls" >"$work/answers" 2>&1 </dev/null
brings burst 1-3 "$(for number in {000..499}; do echo "PUT $PREFIX/burst/$number $number"; done)" 10
equal "order of revisions" "$(parts burst 4)" "$(parts burst 4 | sort -nu)"
end
