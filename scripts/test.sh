#!/bin/sh
# Every check, even after one has failed; the last lines name the steps that failed and what failed in each.
# The build runs beside the installation of what the tests need, and what runs on one processor beside the tests; each is
# shown when it ends.
# usage: scripts/test.sh BIN COMPILED BUILD READY [pytest flags]; BUILD is the command that makes the compiled build
# COMPILED, which is empty where none can be made; READY is the command that installs what the tests need
bin=$1
compiled=$2
build=$3
ready=$4
shift 4
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
: >"$logs/failed"
# A failed test's line in pytest's summary has the whole first line of its message.
export COLUMNS=240

step() {
    name=$1
    begun=$(date +%s)
    shift
    "$@" >"$logs/$name" 2>&1
    status=$?
    [ $status = 0 ] || echo "$name" >>"$logs/failed"
    printf '\n== %s\n' "$name" # the dots of the tests may stand before it
    cat "$logs/$name"
    echo "$name: $(($(date +%s) - begun)) s"
    return $status
}

tests() {
    printf '\n== pytest\n'
    # The byte code of the tests, once: pytest rewrites their assertions, and each of its processes would.
    "$bin/python" -m pytest --collect-only -qq >/dev/null 2>&1
    { "$bin/python" -m pytest -n "$processes" --dist loadfile --no-loadscope-reorder "$@" 2>&1 ||
        echo pytest >>"$logs/failed"; } | tee "$logs/pytest"
}

# The C that `pip install` compiles; all tests but these are about the sources in pure Python.
[ -z "$compiled" ] || step build $build &
building=$!
# Ctrl-C: a shell has its background ignore it.
trap 'kill $building $testing 2>/dev/null; exit 130' INT TERM
# Tests without what they need would fail each by itself. The browser's and the reference server's tests skip.
$ready || { kill $building 2>/dev/null; exit 1; }
[ ! -e "$bin/../.browser" ] || { NBTRITON_CHROMIUM=$(cat "$bin/../.browser") && export NBTRITON_CHROMIUM; }
# Two for each processor: half of its time a test waits for another process. A file's tests stay together: they share
# servers.
processes=$(($(getconf _NPROCESSORS_ONLN) * 2))
step style "$bin/ruff" check --quiet .
step format "$bin/ruff" format --check --quiet .
tests "$@" &
testing=$!
step types "$bin/mypy"
step layers "$bin/lint-imports" --no-cache --no-logo
if wait $building && [ -n "$compiled" ]; then
    # A part of `make test-collector`, which is nightly: an object that the collector clears while it is alive ends the
    # process.
    step compiled env PYTHONPATH="$compiled" "$bin/python" -m pytest -q -n logical --dist loadfile --gc-threshold 1 \
        tests/engine/test_batching.py tests/engine/test_bls_cancel.py tests/engine/test_ensembles.py \
        tests/engine/test_instructions.py tests/engine/test_lifecycle.py tests/engine/test_recorder.py \
        tests/engine/test_sequences.py tests/engine/test_updates.py tests/workers/test_instances.py \
        tests/workers/test_kinds.py tests/workers/test_transport.py
fi
wait $testing

[ -s "$logs/failed" ] || exit 0
failed=""
for name in build style format types layers compiled pytest; do
    grep -qx "$name" "$logs/failed" || continue
    failed="$failed $name"
    echo "== failed: $name"
    # pytest names each failed test; what another tool wrote, or pytest before it was ended, is shown by its end.
    grep -E '^(FAILED|ERROR) ' "$logs/$name" | cut -c -240 | head -40 | grep . || tail -20 "$logs/$name"
done
echo "FAILED:$failed"
exit 1
