# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Marks and initialization of tensor-parallel weights, and FSDP1."""

import pytest
import torch

from transformer_engine.pytorch import distributed


def test_marks_are_set_once():
    tensor = torch.zeros(2)
    distributed.set_tensor_model_parallel_attributes(tensor, True, 1, 2)
    marks = (tensor.tensor_model_parallel, tensor.partition_dim, tensor.partition_stride)
    assert marks == (True, 1, 2)
    with pytest.raises(RuntimeError, match="tensor_model_parallel = True already"):
        distributed.set_tensor_model_parallel_attributes(tensor, False, 0, 1)
    assert tensor.partition_dim == 1


@pytest.mark.parametrize(
    "initialize",
    [distributed.initialize_affine_weight, distributed.initialize_affine_weight_gpu],
)
def test_initialization_draws_from_the_tracker(initialize):
    tracker = distributed.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 5)
    weight, plain = torch.zeros(4), torch.zeros(4)
    initialize(weight, torch.nn.init.normal_, lambda: tracker, partition_dim=1, stride=3)
    assert (weight.partition_dim, weight.partition_stride) == (1, 3)
    torch.manual_seed(5)
    initialize(plain, torch.nn.init.normal_, None, set_tp_attributes=False)
    assert torch.equal(weight, plain)
    assert not hasattr(plain, "partition_dim")


def test_fsdp_helpers_are_imported_when_asked_for():
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = distributed.no_such_name
    with pytest.raises(TypeError, match="fsdp_root is a Linear"):
        distributed.prepare_te_modules_for_fsdp(torch.nn.Linear(2, 2))


class Layer(torch.nn.Linear):
    """What FSDP looks for in a module of this library."""

    def __init__(self, primary_weights_in_fp8=False):
        super().__init__(4, 4)
        self.fsdp_group = None
        self.fp8_meta = {}
        self.primary_weights_in_fp8 = primary_weights_in_fp8


@pytest.fixture
def one_process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_fsdp_units_give_their_group_to_the_modules_inside(one_process_group):
    fsdp = distributed.FullyShardedDataParallel
    model = fsdp(torch.nn.Sequential(Layer(), torch.nn.Linear(4, 4)), device_id=torch.device("cpu"))
    layer = next(module for module in model.modules() if isinstance(module, Layer))
    assert layer.fsdp_group is model.process_group
    model(torch.zeros(2, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="Layer holds quantized primary weights"):
        fsdp(torch.nn.Sequential(Layer(True)), device_id=torch.device("cpu"))
