#!/usr/bin/env bash
# Real clients against a server of the model in models/nano:
#   tests/clients.sh [PROGRAM]
# Each client comes from PyPI into an environment of its own outside the tree; one that cannot be
# installed is left out, with a message.  Everything goes to 127.0.0.1, and ends after about four
# minutes.  LAGUNA_CLIENTS names a folder where the environments stay for the next time.
set -u
cd "$(dirname "$0")/.." || exit 1
program=${1:-./laguna-offload}
here=$PWD/tests/clients
passed=0 failed=0 server='' last=240
work=$(mktemp -d "${TMPDIR:-/tmp}/laguna-clients.XXXXXX") || exit 1
kept=${LAGUNA_CLIENTS:-$work}

leave() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
    rm -rf "$work"
}
trap leave EXIT

# What is left of the time, and no more than asked for.
within() { # seconds, command...
    local most=$1

    shift
    [ $((last - SECONDS)) -gt "$most" ] || most=$((last - SECONDS))
    [ "$most" -gt 0 ] || return 124
    timeout -k 5 "$most" "$@" </dev/null
}

# An environment with these packages; its programs are then in $kept/NAME/bin.
environment() { # name, pip's arguments...
    local name=$1 why

    shift
    [ -e "$kept/$name/complete" ] && return
    if python3 -m venv "$kept/$name" >"$work/pip" 2>&1 &&
        within 150 "$kept/$name/bin/pip" install -q --disable-pip-version-check \
            --prefer-binary "$@" >>"$work/pip" 2>&1; then
        touch "$kept/$name/complete"
        return
    fi
    why=$(grep -i error "$work/pip" | tail -n 1)
    echo "$name is left out: ${why:-it was not installed in time}"
    return 1
}

# Run a client; its lines "ok - ..." and "not ok - ..." are counted.
use() { # name, seconds, command...
    local name=$1 seconds=$2 status=0 good bad

    shift 2
    within "$seconds" "$@" >"$work/log" 2>&1 || status=$?
    good=$(grep -c '^ok - ' "$work/log")
    bad=$(grep -c '^not ok - ' "$work/log")
    if [ "$bad" = 0 ] && { [ "$status" != 0 ] || [ "$good" = 0 ]; }; then
        bad=1
        echo "$name ended with status $status"
    fi
    [ "$bad" = 0 ] || tail -n 40 "$work/log"
    echo "$name: $good passed, $bad failed"
    passed=$((passed + good)) failed=$((failed + bad))
}

# The address of a server that this script ends, in $url.
start_server() {
    "$program" serve -m models/nano --port 0 -c 32768 2>"$work/server" >/dev/null </dev/null &
    server=$!
    for _ in $(seq 300); do
        url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/server" | head -n 1)
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/server"
    return 1
}

# The server is asked for the counts of errors before and after: a turn without an error of the
# protocol leaves them as they were.
counts() {
    python3 - "$url" <<-'END'
	import sys, urllib.request
	text = urllib.request.urlopen(sys.argv[1] + '/metrics', timeout=20).read().decode()
	value = {k: v for k, v in (l.rsplit(' ', 1) for l in text.splitlines() if l[:1] != '#')}
	print(*(int(float(value['laguna_' + n])) for n in ('requests_total', 'requests_failed_total',
	                                                   'requests_refused_total')))
	END
}

# A client that is a program: it made requests, and the server had nothing to refuse.
turn() { # name, seconds, command...
    local name=$1 seconds=$2 before after status=0

    shift 2
    before=$(counts)
    within "$seconds" "$@" >"$work/log" 2>&1 || status=$?
    after=$(counts)
    if [ "${before#* }" = "${after#* }" ] && [ "${after%% *}" -gt "${before%% *}" ] &&
        ! grep -qE 'BadRequest|APIError|APIConnection|Traceback' "$work/log"; then
        echo "$name: $((${after%% *} - ${before%% *})) requests, no error (status $status)"
        passed=$((passed + 1))
    else
        tail -n 40 "$work/log"
        echo "$name failed: requests, failed, refused were $before and are $after"
        failed=$((failed + 1))
    fi
}

start_server || exit 1
mkdir -p "$kept" "$work/files" "$work/repository"
export HOME=$work PYTHONDONTWRITEBYTECODE=1
# Whatever a client would ask of others than this server ends at a closed port.
apart=(env HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 NO_PROXY=127.0.0.1
    http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 no_proxy=127.0.0.1
    HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True OPENAI_API_KEY=none
    OPENAI_API_BASE="$url/v1")

if environment openai openai openai-agents; then
    use openai 60 "${apart[@]}" "$kept/openai/bin/python" "$here/use_openai.py" "$url"
    use openai-agents 60 "${apart[@]}" "$kept/openai/bin/python" "$here/use_agents.py" "$url" \
        "$work/files"
fi
if environment anthropic anthropic; then
    use anthropic 60 "${apart[@]}" "$kept/anthropic/bin/python" "$here/use_anthropic.py" "$url"
fi
if [ ! -f ../shared/nano/golden/held.txt ]; then
    echo 'lm-eval is left out: ../shared/nano/golden/held.txt is not there'
elif environment lm-eval 'lm_eval[api]' transformers; then
    use lm-eval 90 "${apart[@]}" "$kept/lm-eval/bin/python" "$here/use_lm_eval.py" "$url" \
        models/nano ../shared/nano/golden/held.txt
fi
if environment mini-swe-agent mini-swe-agent; then
    turn mini-swe-agent 60 "${apart[@]}" "$kept/mini-swe-agent/bin/python" \
        "$here/use_mini.py" "$url" "$work/files"
fi
if environment aider aider-chat; then
    printf 'def one():\n    return 1\n' >"$work/repository/one.py"
    printf -- '- name: openai/nano\n  edit_format: whole\n  extra_params: {max_tokens: 100}\n' \
        >"$work/settings"
    turn aider 60 "${apart[@]}" env -C "$work/repository" "$kept/aider/bin/aider" \
        --model openai/nano --model-settings-file "$work/settings" --no-git --yes-always \
        --no-show-model-warnings --no-check-update --analytics-disable --no-show-release-notes \
        --no-fancy-input --no-pretty --map-tokens 0 --no-detect-urls --no-suggest-shell-commands \
        --message 'What is grep?' one.py
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
