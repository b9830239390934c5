#!/usr/bin/env bash
# The page at / in headless Chromium, from apt:
#   tests/page.sh [PROGRAM [PICTURE]]
# PICTURE gets what the browser shows after an answer; without it, the picture is thrown away.
set -u
cd "$(dirname "$0")/.." || exit 1
program=${1:-./laguna-offload} server=''
work=$(mktemp -d "${TMPDIR:-/tmp}/laguna-page.XXXXXX") || exit 1
picture=${2:-$work/page.png}

leave() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
    rm -rf "$work"
}
trap leave EXIT

browser=$(command -v chromium || command -v chromium-browser)
if [ -z "$browser" ]; then
    ./bootstrap packages chromium >"$work/log" 2>&1
    browser=$(command -v chromium) || {
        echo "the page is left out: no chromium: $(tail -n 1 "$work/log")"
        echo '0 passed, 0 failed'
        exit 0
    }
fi
"$program" serve -m models/nano --port 0 2>"$work/server" >/dev/null </dev/null &
server=$!
for _ in $(seq 300); do
    url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/server" | head -n 1)
    [ -z "$url" ] && kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
HOME=$work timeout -k 5 240 python3 tests/page.py "$browser" "$url" "$picture" >"$work/log" 2>&1
status=$?
cat "$work/log"
passed=$(grep -c '^ok - ' "$work/log") failed=$(grep -c '^not ok - ' "$work/log")
[ "$status" = 0 ] || [ "$failed" -gt 0 ] || failed=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
