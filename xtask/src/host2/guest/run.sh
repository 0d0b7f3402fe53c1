#!/bin/bash
# Runs in the login session of one user of the second host: every case of the plan that is this user's, one after the
# other. What a case says is prefixed, so that it cannot be taken for a line of ours.
exec 9</suite/run.sh
# The sessions take turns: limits are measured, and two cores are few.
flock 9

me=$(id -un)
printf '\nhost2|login|%s\n' "$me"
mkdir -p ~/work && cd ~/work || exit 1
said=$(mktemp)
export LC_ALL=C.UTF-8 PATH=/suite/bin:$PATH
export AIRLOCK_BIN=/suite/bin/airlock AIRLOCK_TEST_STRICT=1 AIRLOCK_TEST_USER=$me

while read -r user name seconds; do
    [ "$user" = "$me" ] || continue
    printf '\nhost2|begin|%s\n' "$name"
    timeout -k 5 "$seconds" bash "/suite/cases/$user.$name" </dev/null >"$said" 2>&1 9<&-
    code=$?
    tail -c 65536 "$said" | tr -d '\000-\010\013-\037' | sed 's/^/host2|said|/'
    printf '\nhost2|end|%s|%s\n' "$name" "$code"
done </suite/plan
printf '\nhost2|done|%s\n' "$me"
