# Users, roles and passwords with etcdctl.
source "$(dirname "$0")/support.sh"

key=$PREFIX/key
root=(--user root:secret-of-root)
reader=(--user reader:secret-of-reader)

lacks off "etcdctl goes on without a token where authentication is off"

step setup
good put "$key" value
says "User root created" user add root:secret-of-root
says "User reader created" user add reader:secret-of-reader
says "Role root created" role add root
says "Role reader-role created" role add reader-role
says "Role reader-role updated" role grant-permission reader-role read "$PREFIX" --prefix
says "Role root is granted to user root" user grant-role root root
says "Role reader-role is granted to user reader" user grant-role reader reader-role
says "Authentication Enabled" auth enable

step anonymous
refused "etcdserver: user name is empty" put "$key" x

step wrong
refused "etcdserver: authentication failed, invalid user ID or password" --user reader:wrong get "$key"

step reader
says "$key
value" "${reader[@]}" get "$key"
refused "etcdserver: permission denied" "${reader[@]}" put "$key" x

step root
says OK "${root[@]}" put "$key" root
says "$key
root" "${root[@]}" get "$key"

step cleanup
says "Authentication Disabled" "${root[@]}" auth disable
for user in reader root; do says "User $user deleted" user delete $user; done
for role in reader-role root; do says "Role $role deleted" role delete $role; done
says OK put "$key" free
end
