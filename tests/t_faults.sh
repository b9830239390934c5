#!/bin/sh
# Rows of the fault catalogue that only the whole program can show: what is in the model's
# directory, what the machine refuses, signals, terminals and the place for statistics.  Each
# fault ends in its exit status and one line of words, or in the same answer as without it.
# tests/FAULTS.md says which row is tested where.
. "${srcdir:-.}/tests/tap.sh"
src=$(cd "$src" && pwd)
prog=$(pwd)/laguna-offload
cut=$src/tests/data/nano-w4a16-1
nano=$src/models/nano
shm=
trap 'rm -rf "$dir" $shm' EXIT
# A library that is linked starts threads of its own before main().
export OPENBLAS_NUM_THREADS=1

# Two requests to the small model, with every bit of their logits; `more`: options beside them.
printf '[2, 100, 200, 300, 33, 44, 55, 66]\n[2, 480, 77, 410, 41]\n' >"$dir/ids"
ask="score --ids --logits --decode -t 2 --isa ref $dir/ids"
answer() { # wrapper and its arguments
    "$@" "$prog" $ask -m "$cut" ${more-} >"$dir/out" 2>"$dir/err" </dev/null
}
same() { cmp -s "$dir/out" "$dir/golden"; }
# The answer is the same, whatever is done to the program.
still() { # name, wrapper...
    label=$1
    shift
    answer "$@" && same
    result $? "$label: the same answer"
}
# A refusal: its status, a word, one line, nothing on stdout.
refused() { # status, word, name, command...
    want=$1 word=$2 label=$3
    shift 3
    "$@" >"$dir/out" 2>"$dir/err" </dev/null
    [ $? = "$want" ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" = 1 ] &&
        grep -q '^laguna-offload: ' "$dir/err" && grep -qFe "$word" "$dir/err"
    result $? "$label: exit $want, '$word'"
}
# What a wrapper cannot give a program that is built with a sanitizer.
sanitized=$(grep -qa __asan_init "$prog" && echo 'the sanitizer takes all addresses')
limited() { # name of the test; 1 where it is skipped
    [ -z "$sanitized" ] || { skip "$sanitized" "$1"; return 1; }
}
fresh() { # a directory whose files are links to those of $1
    rm -rf "$dir/model"
    mkdir "$dir/model"
    for each in "$1"/*; do [ -d "$each" ] || ln -s "$each" "$dir/model/"; done
}
own() { # a file of it that may be changed
    cp --remove-destination "$(readlink "$dir/model/$1")" "$dir/model/$1"
    chmod u+w "$dir/model/$1"
}
load="$prog $ask -m $dir/model"
load_nano="$prog $ask -m $nano"

answer && [ -s "$dir/out" ] && cp "$dir/out" "$dir/golden"
result $? 'an answer'
[ -s "$dir/golden" ] || { echo 'Bail out! no answer to compare with'; exit 1; }

# A20: links into a store of blobs, as download tools lay them out.
fresh "$cut"
"$prog" $ask -m "$dir/model" >"$dir/out" 2>"$dir/err" </dev/null && same
result $? 'A20 files that are links: the same answer'

# A03, A04, A10: a header's claims cost no memory.
small() { (ulimit -v 700000; exec "$@"); }
header() { # bytes of the length, octal
    fresh "$cut"
    rm "$dir/model/model.safetensors"
    printf "$1{}" >"$dir/model/model.safetensors"
}
if limited 'A03 header lengths under a limit on memory'; then
    header '\000\000\000\100\000\000\000\000'
    refused 65 'claims' 'A03 a header of 1 GiB in a small file' small $load
    header '\377\377\377\377\377\377\377\377'
    refused 65 'claims' 'A03 a header of 2^64 - 1 bytes' small $load
    header '\001\341\365\005\000\000\000\000'
    truncate -s 200000000 "$dir/model/model.safetensors"
    refused 65 'too large' 'A04 a header of 100,000,001 bytes' small $load
    { printf '\000\341\365\005\000\000\000\000{'
      yes '"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},' | tr -d '\n' |
          head -c 99999999; } >"$dir/model/model.safetensors" 2>/dev/null
    refused 65 '300000' 'A10 two million tensors' small $load
fi

# A20, A22, A27 by the program's own status.
fresh "$nano"
rm "$dir/model/model-00003-of-00004.safetensors"
refused 66 'model-00003-of-00004' 'A20 a missing shard' $load
ln -s nowhere "$dir/model/model-00003-of-00004.safetensors"
refused 66 'model-00003-of-00004' 'A20 a link to nothing' $load
rm "$dir/model/model-00003-of-00004.safetensors"
mkfifo "$dir/model/model-00003-of-00004.safetensors"
refused 66 'not a regular file' 'A20 a FIFO' $load
rm "$dir/model/model-00003-of-00004.safetensors"
ln -s /dev/zero "$dir/model/model-00003-of-00004.safetensors"
refused 66 'not a regular file' 'A20 /dev/zero' $load
for file in config.json tokenizer.json; do
    fresh "$cut"
    rm "$dir/model/$file"
    mkfifo "$dir/model/$file"
    refused 66 "$file" "A20 a FIFO for $file" $load
    rm "$dir/model/$file"
    ln -s /dev/zero "$dir/model/$file"
    refused 66 "$file" "A20 /dev/zero for $file" $load
done
fresh "$nano"
own model.safetensors.index.json
sed -i 's/"total_size": *[0-9]*/"total_size": 7/' "$dir/model/model.safetensors.index.json"
$load >"$dir/out" 2>"$dir/err" && grep -q total_size "$dir/err"
result $? 'A22 a wrong total_size: a warning, and it goes on'
fresh "$nano"
own model-00004-of-00004.safetensors
truncate -s -1 "$dir/model/model-00004-of-00004.safetensors"
refused 65 'model-00004-of-00004' 'A19 a byte short' $load
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' \
    >"$dir/model/model-00004-of-00004.safetensors"
refused 65 'LFS' 'A27 a pointer to a file that was not fetched' $load

# D04: a logit that overflows is an error, and no answer.
fresh "$cut"
own model.safetensors
head=$(od -An -t u8 -N 8 "$dir/model/model.safetensors" | tr -d ' ')
at=$(head -c $((head + 8)) "$dir/model/model.safetensors" | tail -c +9 |
    sed 's/.*"lm_head.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
printf '\177\177\177\177\177\177\177\177' | dd of="$dir/model/model.safetensors" bs=1 \
    seek=$((8 + head + at + 300 * 512)) conv=notrunc 2>/dev/null
refused 70 'token 300' 'D04 numbers of a sequence' $load
printf 'Hello there, world' >"$dir/text"
refused 70 'token 300' 'D04 perplexity' "$prog" score -m "$dir/model" --isa ref "$dir/text"

# H15: a file system in memory, where there is one.
if shm=$(mktemp -d /dev/shm/t_faults.XXXXXX 2>/dev/null); then
    cp "$cut"/* "$shm"
    "$prog" $ask -m "$shm" --ram-experts 0 >"$dir/out" 2>"$dir/err" </dev/null && same
    result $? 'H15 experts on tmpfs: the same answer'
else
    skip 'no /dev/shm' 'H15 experts on tmpfs'
fi

# H18, J06: few open files, little stack, little memory.
files() { (exec 3>&-; ulimit -n "$1"; shift; exec "$@"); }  # 3 may be inherited
stack() { (ulimit -s "$1"; shift; exec "$@"); }
refused 71 'Too many open files' 'H18 six open files' files 6 $load_nano
if limited 'J06 256 KiB of stack'; then
    still 'J06 256 KiB of stack' stack 256
    more='--ram-experts 0' still 'J06 256 KiB of stack, reading' stack 256
    more='--isa auto' answer stack 256
    result $? 'J06 256 KiB of stack, the kernels of this machine'
fi

# J01, J02: less memory than the model needs is a refusal with numbers, before any is taken.
refused 75 'MB may be used' 'J01 a budget below the dense weights' \
    "$prog" $ask -m "$cut" --ram 1M
more='--ram 100G' still 'J02 a budget above the machine'

# J05: one core.
if taskset -c 0 true 2>/dev/null; then
    still 'J05 one core' taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')"
else
    skip 'no taskset' 'J05 one core'
fi

# J08: stopped and continued; signals that mean nothing here.
"$prog" $ask -m "$cut" >"$dir/out" 2>"$dir/err" </dev/null &
kill -STOP $! && sleep 0.2 && kill -CONT $! && wait $! && same
result $? 'J08 stopped and continued: the same answer'

# J10, J14: the clock, languages, zones.
LC_ALL=de_DE.UTF-8 LANGUAGE=de TZ=Nowhere/Odd still 'J14 another language, an odd zone'
LC_ALL=C LANG= TZ= still 'J14 none'
grep -nE 'setlocale *\((LC_ALL|LC_NUMERIC)' "$src"/src/*.c >"$dir/err"
[ $? = 1 ]
result $? 'J14 nobody changes how numbers are read'
grep -nE 'CLOCK_REALTIME|gettimeofday' "$src"/src/*.c "$src"/storage/*.c "$src"/cpu/*.c \
    >"$dir/err"
[ $? = 1 ]
result $? 'J10 no time is measured by the wall clock'

# I17: what CUDA has begun does not survive a fork.
grep -nE '\b(v?fork|daemon|popen|system) *\(' "$src"/src/*.c "$src"/storage/*.c "$src"/cpu/*.c \
    "$src"/cuda/*.cu >"$dir/err"
[ $? = 1 ]
result $? 'I17 nobody forks'

# J12: no place for statistics.
warned() { # place, name
    XDG_STATE_HOME=$1 answer && same && [ "$(grep -c warning: "$dir/err")" = 1 ]
    result $? "J12 $2: the same answer, one warning"
}
warned /proc/nowhere 'a place that cannot be made'
warned "$dir/none.conf" 'a file for a place'
(unset HOME XDG_STATE_HOME XDG_CACHE_HOME; answer) && same && [ ! -s "$dir/err" ]
result $? 'J12 no HOME: the same answer'
(TMPDIR=/nowhere HOME=/nowhere; export TMPDIR HOME; answer) && same
result $? 'J12 no TMPDIR: the same answer'

# J13: nobody hears the warnings.
"$prog" $ask -m "$cut" --state-dir /proc/nowhere >"$dir/out" 2>&- </dev/null && same
result $? 'J13 stderr closed: the same answer'
"$prog" $ask -m "$cut" --state-dir /proc/nowhere >"$dir/out" 2>/dev/full </dev/null && same
result $? 'J13 stderr on a full disk: the same answer'
"$prog" $ask -m "$cut" >&- 2>"$dir/err" </dev/null
[ $? = 73 ] && grep -q 'standard output' "$dir/err"
result $? 'J13 stdout closed: exit 73'
"$prog" $ask -m "$cut" --trace-routes "$dir/routes" --state-dir /proc/nowhere \
    >"$dir/out" 2>&- <&- && same && ! grep -qa warning "$dir/routes"
result $? 'J13 stdin and stderr closed: no warning in a file of ours'

# J15: files of our own mode, whatever the mask.
for mask in 0 777; do
    rm -rf "$dir/state"
    (umask $mask; answer)
    [ "$(stat -c %a "$dir/state/laguna-offload")" = 700 ] &&
        [ "$(stat -c %a "$dir/state/laguna-offload/"popularity-*)" = 600 ]
    result $? "J15 a mask of $mask: 700 and 600"
done

# K14: processes that share the place for statistics.
rm -rf "$dir/state"
for i in 1 2 3 4; do
    "$prog" $ask -m "$cut" >"$dir/out.$i" 2>"$dir/err.$i" </dev/null &
    last="${last-} $!"
done
good=0
for child in $last; do wait "$child" || good=1; done
for i in 1 2 3 4; do cmp -s "$dir/out.$i" "$dir/golden" || good=1; done
cat "$dir"/err.? >"$dir/err"
answer && same && [ ! -s "$dir/err" ] && [ "$(ls -A "$dir/state/laguna-offload" | wc -l)" = 1 ] ||
    good=1
result $good 'K14 four at once in one place: the same answers, one whole file'

# H01 to H04, J05, J18, K01, K03: calls that the kernel refuses.
if [ -n "$sanitized" ] || ! strace --seccomp-bpf -f -o /dev/null true 2>/dev/null; then
    skip 'no strace here' 'H01 to H04, J05, J18, K01 and K03 by calls that fail'
else
    inject() { # calls:what, command; 99 where it never came to such a call
        spec=$1
        shift
        strace --seccomp-bpf -f -qq -o "$dir/trace" -e trace="${spec%%:*}" -e inject="$spec" \
            "$@"
        got=$?
        grep -q INJECTED "$dir/trace" || got=99
        return $got
    }
    for error in ENOSYS EPERM ENOMEM; do
        more='--ram-experts 0' answer inject "io_uring_setup:error=$error" && same &&
            grep -q 'io_uring' "$dir/err" && [ "$(grep -c . "$dir/err")" = 1 ]
        result $? "H01 io_uring_setup: $error: a warning and the same answer"
    done
    refused 78 'io_uring' 'H01 --io uring where there is none' \
        inject io_uring_setup:error=ENOSYS "$prog" $ask -m "$cut" --ram-experts 0 --io uring
    # The first call enables the ring; the others, while nobody waits, tell it of slots.
    more='--ram-experts 0' still "H03 io_uring_register, call 1: ENOMEM" \
        inject "io_uring_register:error=ENOMEM:when=1"
    for nth in 2 3; do
        inject "io_uring_register:error=ENOMEM:when=$nth" "$prog" bench -m "$cut" -p 8 -n 2 -r 1 \
            -c 1024 --ram-experts 1M --json >"$dir/out" 2>"$dir/err" </dev/null &&
            grep -q '"test": "tg2"' "$dir/out" && grep -q 'not registered for reading' "$dir/err"
        result $? "H03 io_uring_register, call $nth: ENOMEM: a warning and an answer"
    done
    for error in EINTR EAGAIN EBUSY; do
        more='--ram-experts 0' still "H04 every third io_uring_enter: $error" \
            inject "io_uring_enter:error=$error:when=3+3"
    done
    more='--ram-experts 0 --io preadv' still 'H04 every third preadv: EINTR' \
        inject preadv,preadv2,pread64:error=EINTR:when=3+3
    still 'J05 mbind: EPERM' inject mbind,set_mempolicy:error=EPERM
    still 'J05 no say over which core runs what' inject sched_setaffinity:error=EPERM
    still 'J05 madvise: EINVAL' inject madvise:error=EINVAL
    refused 71 'thread' 'J05 a thread that cannot be made' \
        inject clone3,clone:error=EAGAIN "$prog" $ask -m "$cut"

    answer strace --seccomp-bpf -f -qq -o "$dir/trace" -e trace=prctl,madvise &&
        grep -q 'PR_SET_DUMPABLE, \(SUID_DUMP_DISABLE\|0\))' "$dir/trace" &&
        grep -q MADV_DONTDUMP "$dir/trace"
    result $? 'J18 no debugger, no core file, no keys and values in one'

    rm -rf "$dir/state"
    answer && cp -r "$dir/state" "$dir/kept"
    state=$dir/state/laguna-offload
    whole() { # nothing but one whole file, which the next run reads without a word
        answer && same && [ ! -s "$dir/err" ] &&
            [ "$(ls -A "$state" | wc -l)" = 1 ]
    }
    for call in unlinkat openat fdatasync renameat fsync; do
        rm -rf "$dir/state"
        cp -r "$dir/kept" "$dir/state"
        # Only what is done in that directory; fdatasync is done nowhere else.
        within="-P $state"
        [ $call != fdatasync ] || within=
        answer strace -f -qq -o /dev/null -e trace=$call $within -e inject=$call:signal=SIGKILL
        killed=$?
        whole && [ $killed = 137 ]
        result $? "K01 killed in the save, at $call: one whole file"
    done
    for call in fdatasync:error=EIO fdatasync:error=ENOSPC renameat:error=EROFS; do
        rm -rf "$dir/state"
        cp -r "$dir/kept" "$dir/state"
        answer inject "$call" && same && grep -q 'not saved' "$dir/err" &&
            [ "$(ls -A "$state")" = "$(ls -A "$dir/kept/laguna-offload")" ] &&
            cmp -s "$state/popularity-"* "$dir/kept/laguna-offload/popularity-"*
        result $? "K03 $call: the same answer, a warning, the old file, and no other"
    done
fi
echo "1..$n"
