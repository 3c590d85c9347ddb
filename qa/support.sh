# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the test scripts share; they source it first. Settings, all from the environment:
#   TE_PATH      the source tree (default: the one this file lies in)
#   XML_LOG_DIR  where results in JUnit's format go (default: $TE_PATH/build/logs)
#   PYTHON       the interpreter (default: $TE_PATH/.venv/bin/python, else python3)
#   QA_STRICT    1: a missing need is a failure instead of a skip

TE_PATH=$(cd "${TE_PATH:-$(dirname "${BASH_SOURCE[0]}")/..}" && pwd)
XML_LOG_DIR=${XML_LOG_DIR:-$TE_PATH/build/logs}
mkdir -p "$XML_LOG_DIR"
XML_LOG_DIR=$(cd "$XML_LOG_DIR" && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ ! -x "$TE_PATH/.venv/bin/python" ] || PYTHON=$TE_PATH/.venv/bin/python
fi
suite=$(basename "$(cd "$(dirname "$0")" && pwd)")
failures=()

# skip REASON: end the script, successfully unless QA_STRICT is set.
skip() {
  echo "SKIP $suite: $1"
  [ "${QA_STRICT:-0}" != 1 ] || { echo "FAIL $suite: QA_STRICT allows no skip"; exit 1; }
  exit 0
}

# has_module NAME: whether the interpreter finds a Python module (from outside the source tree).
has_module() {
  (cd / && "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)")
}

# need_module NAME REMEDY: skip unless the module is there.
need_module() {
  has_module "$1" || skip "needs the Python module $1 in $PYTHON. $2"
}

# run_case NAME COMMAND...: run it, remember a failure, go on.
run_case() {
  local name=$1
  shift
  "$@" || { echo "FAIL $suite: $name (exit $?)"; failures+=("$name"); }
}

# finish: exit 1 when a case failed.
finish() {
  [ ${#failures[@]} = 0 ] || { echo "FAIL $suite: ${failures[*]}"; exit 1; }
  exit 0
}
