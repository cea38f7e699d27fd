#!/bin/sh
# Every check, even after one has failed; pytest last, so that its closing line ends the run.
# usage: scripts/test.sh BIN [pytest flags]
bin=$1
shift
failed=

step() {
    name=$1
    shift
    echo "== $name"
    "$@" || failed="$failed $name"
}

step style "$bin/ruff" check --quiet .
step format "$bin/ruff" format --check --quiet .
step types "$bin/mypy"
step layers "$bin/lint-imports" --no-cache --no-logo
step pytest "$bin/python" -m pytest "$@"

if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
