# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of `numerics_report`: measures, recording, the FP32 reference, results."""
