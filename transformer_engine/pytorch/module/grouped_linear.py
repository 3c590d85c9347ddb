# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Many linear layers over consecutive groups of rows: the name, not yet the layer."""

from __future__ import annotations

from typing import Any

import torch


class GroupedLinear(torch.nn.Module):
    """One weight per group of rows; not in this version.

    The class exists because clients derive from it when they are imported.

    Parameters
    ----------
    num_gemms : int
        Groups of rows, each with a weight of its own.
    in_features, out_features : int
        Sizes of the last dimension of input and output.
    **options
        Those of `Linear`.

    Raises
    ------
    NotImplementedError
        When constructed.
    """

    def __init__(self, num_gemms: int, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        raise NotImplementedError(
            f"{type(self).__name__}: num_gemms is {num_gemms}; grouped layers are not in this "
            "version. Use one Linear per group."
        )
