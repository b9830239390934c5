#!/bin/sh
# The rules of CONVENTIONS that a script can judge.  A rule that needs an exception
# gets it here, by name, with the reason.
cd "${srcdir:-.}" || exit 99
code=$(find src cpu cuda storage tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
n=0
check() { # name, offending lines
    n=$((n + 1))
    if [ -z "$2" ]; then echo "ok $n - $1"; return; fi
    echo "not ok $n - $1"
    printf '%s\n' "$2" | sed 's/^/# /'
}

# Leaves know the vocabulary headers of src/ and their own folder, nothing else.
vocab='src/(base|shape|weights|expert|ref)\.h'
for dir in cpu cuda storage; do
    check "$dir/ includes only itself and the vocabulary" \
        "$(grep -nE '^#include "' $dir/*.[ch] $dir/*.cu 2>/dev/null |
           grep -vE "\"($vocab|$dir/[a-z0-9_]+\.(h|inc|cuh)|config\.h)\"")"
done
check 'files of at most 1000 lines' \
    "$(wc -l $code | awk '$2 != "total" && $1 > 1000')"
check 'functions of at most 100 lines' \
    "$(awk 'FNR == 1 { at = 0 } /^{/ { at = FNR }
            /^}/ { if (at && FNR - at > 100) print FILENAME ":" at; at = 0 }' $code)"
# Columns, not bytes, whatever the locale.
check 'lines of at most 100 columns' "$(LC_ALL=C.UTF-8 grep -nE '^.{101}' $code)"
check 'the environment is read in one file' \
    "$(grep -ln 'getenv' $code | grep -v -e '^src/options.c' -e '^tests/')"
check 'no #if inside a function' \
    "$(awk 'FNR == 1 { in_fn = 0 } /^{/ { in_fn = 1 } /^}/ { in_fn = 0 }
            in_fn && /^ *# *if/ { print FILENAME ":" FNR }' $code)"
check 'structs have no typedef' "$(grep -nE '^ *typedef +(struct|union|enum)' $code)"
# A signal handler is given nothing but a global to write to: src/cmd_run.c has one.
check 'no global variables but static const tables' \
    "$(grep -nE '^(static |_Thread_local |extern )*[a-z][a-z0-9_ ]*[ *][a-z0-9_]+(\[[^]]*\])*( =.*|;)$' \
           $(find src cpu cuda storage -name '*.[ch]' -o -name '*.cu') |
       grep -vE ':(typedef|return|struct|enum|union) |\bconst\b|src/cmd_run.c:[0-9]+:.* interrupted;')"
check 'nothing is promised' \
    "$(grep -nwE 'TODO|FIXME|XXX|HACK|stub|placeholder' $code |
       grep -v '^tests/t_style.sh')"
check 'every test is in tests/local.mk' \
    "$(for t in tests/t_*.c tests/t_*.sh tests/fuzz/*.c; do
           case $t in *.c) name=${t%.c} ;; *) name=$t ;; esac
           grep -qE "^[^#]*\b$name( |\.c|$)" tests/local.mk || echo "$t"
       done)"
check 'every fuzz target has a corpus' \
    "$(for t in $(grep -l LLVMFuzzerTestOneInput tests/fuzz/*.c | grep -v replay.c); do
           corpus=tests/fuzz/corpus/$(basename "$t" .c)
           [ -n "$(ls "$corpus" 2>/dev/null)" ] || echo "$corpus"
       done)"
check 'comments are not banners' "$(grep -nE '^ *(/\*|//|#) ?[-=*#]{5,}' $code)"
# The headers of one instruction set hold inline functions that need its flags.
avx='-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16'
check 'headers guarded and self-contained' \
    "$(for h in $(find src cpu cuda storage -name '*.h' ! -name page_bytes.h); do
           case $h in cpu/avx*) isa=$avx ;; *) isa= ;; esac
           echo "#include \"$h\"" |
               ${CC:-cc} -std=gnu11 -I. $isa -fsyntax-only -x c - 2>&1 | head -1
       done)"
echo "1..$n"
