#!/usr/bin/env bash
# The first lines that a user types: those of `longshore --help`, which are the manual page's too, and what bash completes of them.
. "$(dirname "$0")/lib.sh"
mkdir "$place/first"
some_text "$place/first/book.txt" 400
"$LONGSHORE" --help | sed -n '/^A first run:/,/^$/s/^  longshore //p' >"$place/lines"
same "three lines" "$(wc -l <"$place/lines")" 3
while read -r line; do
    eval "words=($line)"
    (cd "$place/first" && "${guard[@]}" "$LONGSHORE" "${words[@]}") >"$place/log" 2>&1 </dev/null && ok "$line" || fail "$line"
done <"$place/lines"
same "the last one went on" "$("$LONGSHORE" inspect "$place/first/runs/a" | sed -n 's/^run .*: step //p')" "40 of 40, finished"
run train --resume "$place/first/runs/a" --steps 41
same "a warning stands once a run" "$(grep -c warning "$place/log")" 0

. "$tests/../packaging/longshore.bash"
# completes WANTED WORDS...: the last word, which has just been begun
completes() {
    local wanted=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _longshore
    same "completion of $*" "${COMPREPLY[*]}" "$wanted"
}
completes "train" "$LONGSHORE" trai
completes "--schedule" "$LONGSHORE" train --sched
completes "constant linear cosine" "$LONGSHORE" train --schedule ""
completes "adamw adam adagrad" "$LONGSHORE" train --optimizer ad
completes "gpt2-tiny" "$LONGSHORE" train --init gpt2-ti
completes "bench" "$LONGSHORE" drive be
done_testing
