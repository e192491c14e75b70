# A session with ZooKeeper's command line; it tells id and negotiated timeout in its log.
source "$(dirname "$0")/support.sh"

negotiated() { sed -n 's/.*Session establishment complete.* negotiated timeout = //p' "$work/$1.out"; }

step session
open b
check "the session id is not 0" "$(session b)" != 0x0
check "there is a session id" -n "$(session b)"

step timeout-low
open low "$ADDRESS" 100
equal "negotiated" "$(negotiated low)" 4000

step timeout-high
open high "$ADDRESS" 100000
equal "negotiated" "$(negotiated high)" 40000

step idle
make_root low
zk low "create -e $PREFIX/idle"
sleep 10
stat b "$PREFIX/idle"
equal "owner" "$(field ephemeralOwner)" "$(session low)"
equal "sessions that it had" "$(grep -c "Session establishment complete" "$work/low.out")" 1

step close
gone() {
  zk b "stat $PREFIX/idle"
  [ "$said" = "Node does not exist: $PREFIX/idle" ]
}
# Not by close: its wait is for the end of the process, which comes later than the end of the session.
echo quit >&"${pipe[low]}"
soon 2 "the ephemeral node is gone" gone
close high
close b
end
