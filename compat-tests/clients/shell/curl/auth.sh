# Users, roles and tokens by the JSON gateway; a token goes in the header Authorization.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
write_key="{\"key\":\"$(b "$key")\",\"value\":\"eA==\"}"
login() { # login USER PASSWORD: leaves the token for the calls that follow
  token=
  good auth/authenticate "{\"name\":\"$1\",\"password\":\"$2\"}"
  token=$(pick .token)
  check "a token" -n "$token"
}

step off
refused "etcdserver: authentication is not enabled" auth/authenticate '{"name":"root","password":"secret-of-root"}'

step setup
put "$key" value
for user in root reader; do good auth/user/add "{\"name\":\"$user\",\"password\":\"secret-of-$user\"}"; done
for role in root reader-role; do good auth/role/add "{\"name\":\"$role\"}"; done
good auth/role/grant "{\"name\":\"reader-role\",\"perm\":{\"permType\":\"READ\",\"key\":\"$(b "$PREFIX")\",\"range_end\":\"$(b "${PREFIX}0")\"}}"
good auth/user/grant '{"user":"root","role":"root"}'
good auth/user/grant '{"user":"reader","role":"reader-role"}'
good auth/enable '{}'

step anonymous
refused "etcdserver: user name is empty" kv/put "$write_key"

step wrong
refused "etcdserver: authentication failed, invalid user ID or password" auth/authenticate '{"name":"reader","password":"wrong"}'

step reader
login reader secret-of-reader
equal "value" "$(pair "$key" | cut -d ' ' -f 5)" value
refused "etcdserver: permission denied" kv/put "$write_key"

step root
login root secret-of-root
put "$key" root
equal "value" "$(pair "$key" | cut -d ' ' -f 5)" root

step cleanup
good auth/disable '{}'
token=
for user in reader root; do good auth/user/delete "{\"name\":\"$user\"}"; done
for role in reader-role root; do good auth/role/delete "{\"role\":\"$role\"}"; done
refused "etcdserver: authentication is not enabled" auth/authenticate '{"name":"root","password":"secret-of-root"}'
put "$key" free
equal "value" "$(pair "$key" | cut -d ' ' -f 5)" free
end
