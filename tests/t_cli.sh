#!/bin/sh
# The command line from outside: exit statuses, messages, where settings come from, wrong input.
. "${srcdir:-.}/tests/tap.sh"
export LAGUNA_MODEL="$src/models/nano"

run() { ./laguna-offload "$@" >"$dir/out" 2>"$dir/err"; }
# The exit status, and a word that stdout (0) or the one line on stderr (anything else) has.
expect() { # status, word, arguments...
    want=$1 word=$2
    shift 2
    run "$@" </dev/null
    got=$?
    if [ "$want" = 0 ]; then
        [ $got = 0 ] && grep -qe "$word" "$dir/out"
    else
        [ $got = "$want" ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" = 1 ] &&
            grep -q '^laguna-offload: ' "$dir/err" && grep -qFe "$word" "$dir/err"
    fi
    result $? "exit $want, '$word': $*"
}
# The ids that tokenize writes for a text, under whatever settings are made.
prints() { # expected, name, arguments...
    want=$1 name=$2
    shift 2
    run "$@" && [ "$(cat "$dir/out")" = "$want" ]
    result $? "$name"
}

expect 0 'Commands:' --help
expect 0 'Usage: laguna-offload run' run --help
expect 0 'Usage: laguna-offload score' --help score
expect 0 '^laguna-offload [0-9]' --version
expect 0 '^  ref$' --isa help
expect 64 "try 'laguna-offload --help'"
expect 64 '--no-such-option' --no-such-option
expect 64 "'frobnicate'" frobnicate
expect 64 '-x' tokenize -x
expect 64 'needs a value' tokenize --model
expect 64 '--deterministic takes no value' tokenize --deterministic=1
expect 64 'tokenize takes no --temp' tokenize --temp 1
expect 64 "'b'" tokenize a b
expect 64 'in quotes' run two words
expect 64 'hot' run --temp hot x
expect 64 'from 0 to 2' run --temp 2.1 x
expect 64 'nan' run --temp nan x
expect 64 '1e0' run --temp 1e0 x
expect 64 'above 0' run --top-p 0 x
expect 64 '-3' score --window -3 /dev/null
expect 64 '99999999999999999999' score --window 99999999999999999999 /dev/null
expect 64 '3x' tokenize -t 3x
expect 64 'q9' tokenize --kv-type q9
expect 64 'q8|' tokenize --kv-type 'q8|'
expect 64 'cuda:x' tokenize --device cuda:x
expect 64 '12T' tokenize --ram 12T
expect 64 '-1G' tokenize --ram -1G
expect 64 '1.5' tokenize --ram 1.5
expect 64 'auto' tokenize --ram-experts auto
expect 64 'perhaps' run --think perhaps x
expect 64 '18446744073709551616' run --seed 18446744073709551616 x
expect 64 'nosuch' run --isa nosuch x
expect 64 'need --ids' score --logits
expect 64 '--decode' tokenize --decode --bos
expect 64 'give one' run --file x prompt
expect 66 'nowhere' tokenize -m "$dir/nowhere"
expect 66 'nothing.txt' tokenize "$dir/nothing.txt"
expect 66 "$dir" tokenize "$dir"
expect 65 'empty prompt' run --file /dev/null
expect 65 'nothing to predict' score /dev/null

# An instruction set that exists and that this machine lacks, if there is one.
./laguna-offload --isa help | tr -d '* ' >"$dir/here"
lacks=$(printf 'avx2\navx512\navx512vnni\navx512bf16\n' | grep -vxFf "$dir/here" | head -n 1)
if [ -n "$lacks" ]; then
    expect 78 "$lacks" tokenize --isa "$lacks"
else
    n=$((n + 1))
    echo "ok $n - an ISA that this machine lacks # SKIP it has all"
fi

# Lines of input that are wrong are named.
bad_line() { # input, word, arguments...
    printf "$1" >"$dir/in"
    word=$2
    shift 2
    run "$@" "$dir/in"
    [ $? = 65 ] && grep -qFe "$dir/in:$word" "$dir/err"
    result $? "exit 65, '$word': $*"
}
bad_line '"a"\n"b\n' '2: byte 2' tokenize --jsonl
bad_line '[1]\n' '1: byte 0' tokenize --jsonl
bad_line '\n[2,4096]\n' '2: [1]: 4096' tokenize --decode
bad_line '[2,-1]\n' '1: [1]: -1' tokenize --decode
bad_line '{}\n' '1: ' tokenize --decode
bad_line '{"messages":[]}\n' '1: messages' render
bad_line '{\n' '1: ' render

# Text in and out.
prints '[]' 'an empty text has no ids' tokenize /dev/null
printf 'Hello <assistant>\\u0000 \342\200\250' >"$dir/in"
printf '"Hello <assistant>\\u0000 \\u2028"\n' >"$dir/text"
run tokenize --jsonl "$dir/text" && cp "$dir/out" "$dir/ids" && run tokenize --decode "$dir/ids" &&
    cmp -s "$dir/out" "$dir/text"
result $? 'tokenize and --decode give a text back, NUL and line separator included'
grep -q '23' "$dir/ids"
result $? 'an added token is matched'
run tokenize --jsonl --as-text "$dir/text" && ! grep -q '\b23\b' "$dir/out"
result $? '--as-text matches none'
run tokenize --bos "$dir/text" && grep -q '^\[2, ' "$dir/out"
result $? '--bos begins with 2'

# Output that cannot be written.
./laguna-offload tokenize "$dir/text" 2>"$dir/err" >/dev/full
[ $? = 73 ] && grep -q 'standard output: No space left' "$dir/err"
result $? 'a full disk: exit 73'
{ ./laguna-offload --help 2>"$dir/err"; echo $? >"$dir/rc"; } | true
[ ! -s "$dir/err" ]
result $? 'a reader that leaves: no words'

# The command line goes before the environment, that before the file, that before the default.
# score refuses a window that the context cannot hold, which shows what was taken.
echo "$LAGUNA_MODEL" >"$dir/model"
unset LAGUNA_MODEL
printf '# comment\n\n  model = %s/file  \n' "$dir" >"$dir/a.conf"
LAGUNA_CONFIG=$dir/a.conf
expect 66 "$dir/file" tokenize /dev/null
LAGUNA_MODEL=$dir/environment
export LAGUNA_MODEL
expect 66 "$dir/environment" tokenize /dev/null
expect 66 "$dir/line" tokenize -m "$dir/line" /dev/null
printf 'kv-type = q8\nas-text = on\nwindow = 7\n' >"$dir/a.conf"
expect 0 '^\[\]$' tokenize -m "$(cat "$dir/model")" /dev/null
printf 'kv-type = q8\n\ncolour = red\n' >"$dir/a.conf"
expect 64 "$dir/a.conf:3: colour" tokenize /dev/null
printf 'temp = hot\n' >"$dir/a.conf"
expect 64 "$dir/a.conf:1: temp: hot" run x
expect 0 'Usage' run --help
printf 'deterministic\n' >"$dir/a.conf"
expect 64 "$dir/a.conf:1: deterministic: expected key = value" tokenize /dev/null
LAGUNA_CONFIG=$dir/none.conf
LAGUNA_KV_TYPE=q7 expect 64 'LAGUNA_KV_TYPE: q7' tokenize /dev/null
LAGUNA_DETERMINISTIC=maybe expect 64 'LAGUNA_DETERMINISTIC: maybe' tokenize /dev/null
LAGUNA_CONFIG=$dir/absent.conf expect 66 "$dir/absent.conf" tokenize /dev/null
echo "1..$n"
