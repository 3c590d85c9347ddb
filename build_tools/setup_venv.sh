#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# setup_venv.sh PYTHON VENV: make the virtual environment and install what the build, the tests and
# the linters need, and Megatron-core where it can be had. A torch that PYTHON already has is used;
# else the release of requirements.txt is installed. cmake and ninja come from pip where the system
# has none.
set -eu
python=$1
venv=$2
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  echo "setup_venv.sh: $1" >&2
  exit 1
}

command -v "$python" > /dev/null || fail "$python is not on PATH; Python 3.10 or newer is needed."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old; Python 3.10 or newer is needed. Set PYTHON=..."
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
  fail "$python has no Python.h; the native build needs it. Debian: apt-get install python3-dev"

if [ ! -x "$venv/bin/python" ]; then
  "$python" -c 'import ensurepip, venv' 2> /dev/null ||
    fail "$python cannot make virtual environments. Debian: apt-get install python3-venv"
  options=()
  if (cd / && "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)')
  then
    options=(--system-site-packages)
  fi
  "$python" -m venv ${options[@]+"${options[@]}"} "$venv"
fi

venv=$(cd "$venv" && pwd)
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
cat "$root/requirements.txt" > "$requirements"
if (cd / && "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)')
then
  sed -i '/^torch==/d' "$requirements"
fi
"$venv/bin/python" "$root/build_tools/cmake_build.py" --missing-tools | tr ' ' '\n' >> "$requirements"
echo "installing into $venv"
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --quiet \
  -r "$requirements" -r "$root/requirements-dev.txt"

# A client of the library, for its tests, which skip where it is not there: no wheel of it fits every
# Python and machine.
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --quiet --no-deps \
  --only-binary :all: -r "$root/requirements-megatron.txt" ||
  echo "setup_venv.sh: Megatron-core cannot be installed; tests/megatron will be skipped." >&2
