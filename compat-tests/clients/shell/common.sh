# What a scenario says to the bench: steps, checks, faults, waits with a limit. Nothing about any client.
set -u
ADDRESS=$3
PREFIX=$4
LINK=${COMPAT_LINK:-}

work=$(mktemp -d)
current=
failed=
# Whatever was started in the background and still runs.
children=()

# The limit of the whole program comes as TERM.
trap 'fail "the program did not end in time"' TERM
trap leave EXIT

leave() {
  # Whatever else ends the program is a failure too, and is said.
  [ $? -eq 0 ] || [ -n "$failed" ] || echo "fail ${current:-start} the program broke off"
  if [ ${#children[@]} -gt 0 ]; then
    kill -9 "${children[@]}" 2>/dev/null
    wait "${children[@]}" 2>/dev/null
  fi
  rm -rf "$work"
}

# step NAME: begins a step; the one before holds, as nothing in it failed.
step() {
  [ -z "$current" ] || echo "ok $current"
  current=$1
}

# lacks NAME REASON: this client has no such call.
lacks() {
  step ""
  echo "lacks $1 $2"
}

note() { echo "note $*"; }

end() {
  step ""
  echo "done"
  exit 0
}

fail() {
  failed=yes
  echo "fail ${current:-start} $*" | tr '\n' ' ' | cut -c 1-800
  exit 1
}

# ask VERB: has the bench do something to the server or the link.
ask() {
  local answer
  echo "do $1"
  read -r answer
  [ "$answer" = "done" ] || fail "the bench could not $1: $answer"
}

# equal WHAT SEEN WANTED
equal() { [ "$2" = "$3" ] || fail "$1: expected '$3', saw '$2'"; }

# check WHAT CONDITION...: the condition, as for test, holds.
check() {
  local what=$1
  shift
  [ "$@" ] || fail "not so: $what ($*)"
}

# number TEXT: it is one.
number() {
  case $1 in "" | *[!0-9]*) fail "expected a number, saw '$1'" ;; esac
}

# pause SECONDS: without a process of its own, which would outlive the program.
pause() { read -rt "$1" <> <(:) || true; }

# soon SECONDS WHAT COMMAND...: the command succeeds within so long.
soon() {
  local end limit=$1 what=$2
  shift 2
  end=$(($(now) + limit * 1000))
  until "$@"; do
    [ "$(now)" -lt "$end" ] || fail "not within $limit s: $what"
    sleep 0.05
  done
}

# Milliseconds of a clock.
now() {
  local micros=${EPOCHREALTIME//[!0-9]/}
  echo $((micros / 1000))
}

# undisturbed WHAT COMMAND...: the command leaves two equal numbers in $saw and $wanted. A lease of an earlier scenario
# may end meanwhile and move the revision, so that it has three tries; a server that counts wrongly never gets it right.
undisturbed() {
  local what=$1 try
  shift
  for try in {1..3}; do
    "$@"
    [ "$saw" != "$wanted" ] || return 0
  done
  fail "$what: expected $wanted, saw $saw, three times"
}

# parts NAME FIELDS: these fields of all events that the client's `events NAME` prints, in lines.
parts() { events "$1" | cut -d ' ' -f "$2"; }

# brings NAME FIELDS WANTED [SECONDS]: the fields of all events so far are, within so long, exactly these lines.
brings() {
  soon "${4:-5}" "of the watch $1: $(tr '\n' ';' <<<"$3" | cut -c 1-300)" is "$1" "$2" "$3"
}

is() { [ "$(parts "$1" "$2")" = "$3" ]; }
