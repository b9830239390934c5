# What shell tests share, which begin with it: a folder of their own, $dir; results as TAP; and
# nothing of this machine's settings.
src=${srcdir:-.}
dir=$(mktemp -d "${TMPDIR:-/tmp}/laguna-test.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
for name in $(env | sed -n 's/^\(LAGUNA_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
: >"$dir/none.conf"
export LAGUNA_CONFIG="$dir/none.conf" XDG_STATE_HOME="$dir/state" XDG_CACHE_HOME="$dir/cache"

n=0
result() { # exit status, name; what went wrong is in $dir/out and $dir/err
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; return; fi
    echo "not ok $n - $2"
    cat "$dir/out" "$dir/err" 2>/dev/null | sed 's/^/# /'
}
skip() { # reason, name
    n=$((n + 1))
    echo "ok $n - $2 # SKIP $1"
}
