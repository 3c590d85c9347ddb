#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The CUDA sources, compiled by nvcc for three architectures without a GPU: no warnings, no spilled
# registers, conversion instructions where formats have them. build_tools/cuda_compile.py says more;
# arguments go to it. Without a toolkit the pinned compiler packages are fetched (105 MB).
# Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

"$PYTHON" "$TE_PATH/build_tools/cuda_toolkit.py" --fetch > /dev/null || skip "needs nvcc"
"$PYTHON" "$TE_PATH/build_tools/cublas_headers.py" --fetch > /dev/null || skip "needs cuBLASLt's headers"
"$PYTHON" "$TE_PATH/build_tools/cudnn_headers.py" --fetch > /dev/null || skip "needs cudnn-frontend"
command -v g++ > /dev/null || skip "needs g++. Debian: apt-get install g++"
run_case compile "$PYTHON" "$TE_PATH/build_tools/cuda_compile.py" --fetch --output "$XML_LOG_DIR" "$@"
finish
