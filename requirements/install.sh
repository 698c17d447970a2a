#!/usr/bin/env bash
# Makes .venv from an exact lock: `bash requirements/install.sh [cpu|gpu]`, once; after that it returns at once.
# A lock that changed is installed over the old one; a set-up that was interrupted, or a folder that was moved, starts
# anew (what was downloaded is still in the caches). Refuses, in one line, what the locks were not made for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() { echo "set-up: $1" >&2; exit 2; }

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || refuse "needs Linux on x86-64, and this is $(uname -s) on $(uname -m)"
name=${1:-cpu}
lock=requirements/$name.txt
[ -f "$lock" ] || refuse "no lock $lock; give cpu or gpu"

venv=$PWD/.venv
log=$venv/setup.log
stamp=$venv/setup.done
unfinished=$venv/setup.unfinished
exec 9<requirements/install.sh && flock 9  # two at once: the second waits, and finds it done
digest=$(cat "$lock" pyproject.toml requirements/install.sh <(echo "$venv") | sha256sum)
[ -f "$stamp" ] && [ "$(<"$stamp")" = "$digest" ] && exit 0

for python in python3.11 python3.12 python3 none; do
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2>/dev/null && break
done
[ "$python" != none ] || refuse "needs Python 3.11 or 3.12 on the PATH, and found neither"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    refuse "$python has no venv module; on Debian or Ubuntu: apt install $python-venv"

# Says what it does and how long that took; what a command prints goes to the log, whose end is shown when it fails.
stage() {
    local title=$1 began=$SECONDS
    shift
    printf 'set-up: %s ... ' "$title"
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        printf 'failed; the end of %s:\n' "$log"
        tail -n 20 "$log" >&2
        echo "set-up: $title failed; see $log, then run the same command again" >&2
        exit 1
    fi
    echo "$((SECONDS - began)) s"
}

# The CPU build of torch is not on PyPI. pip goes first because it knows this machine's own indexes and wheel folders.
torch() {
    local pin
    pin=$(grep '^torch==' "$lock")
    "$venv/bin/pip" install --no-deps --no-compile "$pin" ||
        "$venv/bin/pip" install --no-deps --no-compile --extra-index-url https://download.pytorch.org/whl/cpu "$pin"
}

# uv takes half a minute where pip takes minutes; pip is for a machine whose packages only pip's settings can reach.
packages() {
    UV_HTTP_TIMEOUT=180 "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps -r "$lock" ||
        "$venv/bin/pip" install --no-deps --no-compile -r "$lock"
}

# Bytecode once, on all cores: processes that may not write it (PYTHONDONTWRITEBYTECODE) would compile at every start.
# Left out is what nothing here loads: it would only be compiled on first use. Files for a newer Python fail.
bytecode() {
    local unused='/tests?/|/torch/testing/|/transformers/models/(?!auto/|llama/|qwen2/|qwen3/)'
    unused+='|/ray/(rllib|tune|serve|data|train)/|/(anthropic|apprise|databricks|fontTools|pip|setuptools)/'
    "$venv/bin/python" -m compileall -q -j 0 -x "$unused" "$venv/lib" || true
}

project() {
    "$venv/bin/pip" install --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
}

began=$SECONDS
if [ -f "$unfinished" ] || ! grep -qsF "$venv" "$venv/pyvenv.cfg"; then
    rm -rf "$venv"
fi
mkdir -p "$venv"
rm -f "$stamp"
touch "$unfinished"
stage "environment of $("$python" -V), in .venv" "$python" -m venv "$venv"
[ "$name" = gpu ] || stage "torch, CPU build (200 MB)" torch
stage "uv" "$venv/bin/pip" install --no-deps "$(grep '^uv==' "$lock")"
stage "$(grep -c '==' "$lock") packages of $lock" packages
stage "bytecode" bytecode
stage "mappa itself" project
rm -f "$unfinished"
echo "$digest" >"$stamp"
echo "set-up: done in $((SECONDS - began)) s"
