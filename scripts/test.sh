#!/bin/sh
# Every check, even after one has failed; the last lines name the steps that failed and what failed in each.
# A file's tests stay together: they share servers.
# usage: scripts/test.sh BIN COMPILED [pytest flags]; COMPILED is a compiled build, or empty
bin=$1
compiled=$2
shift 2
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=$logs/failed
: >"$failed"
# A failed test's line in pytest's summary has the whole first line of its message.
export COLUMNS=240

step() {
    name=$1
    shift
    echo "== $name"
    { "$@" 2>&1 || echo "$name" >>"$failed"; } | tee "$logs/$name"
}

step style "$bin/ruff" check --quiet .
step format "$bin/ruff" format --check --quiet .
step types "$bin/mypy"
step layers "$bin/lint-imports" --no-cache --no-logo
if [ -n "$compiled" ]; then
    # What `pip install` installs here; all that follows is about the sources in pure Python.
    step compiled env PYTHONPATH="$compiled" "$bin/python" -m pytest -q \
        -n logical --dist loadfile tests/engine \
        tests/workers/test_transport.py tests/workers/test_instances.py tests/workers/test_kinds.py
    # An object that the collector clears while it is alive ends the process; nightly all of them run so.
    step collector env PYTHONPATH="$compiled" "$bin/python" -m pytest -q \
        -n logical --dist loadfile --gc-threshold 1 \
        tests/engine/test_batching.py tests/engine/test_bls_cancel.py tests/engine/test_ensembles.py \
        tests/engine/test_lifecycle.py tests/engine/test_recorder.py tests/engine/test_sequences_live.py \
        tests/engine/test_updates.py
fi
# Two for each processor: half of its time a test waits for another process.
processes=$(($(getconf _NPROCESSORS_ONLN) * 2))
step pytest "$bin/python" -m pytest -n "$processes" --dist loadfile --no-loadscope-reorder "$@"

[ -s "$failed" ] || exit 0
while read -r name; do
    echo "== failed: $name"
    # pytest names each failed test; what another tool wrote, or pytest before it was ended, is shown by its end.
    grep -E '^(FAILED|ERROR) ' "$logs/$name" | cut -c -240 | head -40 | grep . || tail -20 "$logs/$name"
done <"$failed"
echo "FAILED:$(sed 's/^/ /' "$failed" | tr -d '\n')"
exit 1
