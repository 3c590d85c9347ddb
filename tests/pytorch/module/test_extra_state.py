# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The recipe state in state dicts: round trips, other releases' payloads, and damaged ones."""

import copy
import io
import pickle
import struct

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import transformer_engine.common.recipe as recipes
import transformer_engine.pytorch as te
from helpers.modules import KINDS, LINEAR_KINDS, assert_same, make, make_input, recipe_state, run
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

LENGTH = 4
DELAYED = DelayedScaling(amax_history_len=LENGTH)
CURRENT = Float8CurrentScaling()
HEADER_BYTES = 64
NAMES = ("scale_fwd", "amax_history_fwd", "scale_bwd", "amax_history_bwd")


def step(module, recipe=DELAYED, seed=1):
    """One forward and backward in a region."""
    module.zero_grad()
    x = make_input(seed=seed)
    with te.autocast(recipe=recipe):
        y = module(x)
    y.square().sum().backward()
    return {"output": y.detach(), "inp": x.grad, "weight": next(module.parameters()).grad}


def trained(kind="Linear", **keywords):
    """A module whose scales are neither 1 nor fixed."""
    module = make(kind, **keywords)
    for seed in (1, 2, 3):
        step(module, seed=seed)
    return module


def named_buffers(module):
    state = recipe_state(module)
    return {
        "scale_fwd": state["scaling_fwd.scale"],
        "amax_history_fwd": state["scaling_fwd.amax_history"],
        "scale_bwd": state["scaling_bwd.scale"],
        "amax_history_bwd": state["scaling_bwd.amax_history"],
    }


def fresh_buffers(module):
    """What a module starts from: scales 1, histories 0."""
    return {
        name: torch.ones_like(value) if name.endswith("scale") else torch.zeros_like(value)
        for name, value in recipe_state(module).items()
    }


# ---- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LINEAR_KINDS)
@pytest.mark.parametrize("was_used", [False, True])
def test_a_loaded_module_continues_as_the_saved_one(kind, was_used):
    source = trained(kind)
    target = make(kind, seed=50)
    if was_used:
        step(target, seed=9)
    target.load_state_dict(source.state_dict())
    assert_identical(target.get_extra_state(), source.get_extra_state())
    for seed in (4, 5):
        assert_same(step(target, seed=seed), step(source, seed=seed))
    assert_same(recipe_state(target), recipe_state(source))


def test_the_bytes_are_the_documented_layout():
    module = trained()
    data = bytes(module.get_extra_state().tolist())
    assert struct.unpack_from("<8sHHIIII", data) == (b"TEXSTATE", 1, 1, 3, LENGTH, 2, LENGTH)
    values = torch.tensor(struct.unpack_from("<25f", data, HEADER_BYTES))
    expected = torch.cat([buffer.reshape(-1) for buffer in named_buffers(module).values()])
    assert_identical(values, expected)
    assert len(data) == HEADER_BYTES + 4 * 25


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_without_delayed_scaling_the_state_is_empty(kind):
    module = make(kind)
    states = [module.get_extra_state()]
    run(module, make_input())
    states.append(module.get_extra_state())
    step(module, CURRENT)
    states.append(module.get_extra_state())
    for state in states:
        assert state.shape == (0,)
        assert state.dtype == torch.uint8
        assert state.device.type == "cpu"


def test_the_size_is_the_same_before_and_after_training():
    fresh, module = make("Linear"), trained()
    with te.autocast(recipe=DELAYED):
        fresh.init_fp8_metadata()  # the recipe, hence the length of the history, is known now
    assert fresh.get_extra_state().shape == module.get_extra_state().shape
    with te.quantized_model_init(recipe=DELAYED):
        quantized = make("Linear")
    assert quantized.get_extra_state().shape == module.get_extra_state().shape
    fresh.get_extra_state()
    fresh.load_state_dict(module.state_dict())
    assert_identical(fresh.get_extra_state(), module.get_extra_state())


no_dist = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@no_dist
@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize("recipe", [None, CURRENT, DELAYED])
def test_distributed_checkpoints_load(recipe, is_fresh, tmp_path):
    source, target = make("Linear"), make("Linear", seed=50)
    if recipe is not None:
        step(source, recipe)
        if not is_fresh:
            with te.autocast(recipe=recipe):
                target.init_fp8_metadata()
    checkpoint.save(source.state_dict(), checkpoint_id=tmp_path, no_dist=True)
    state = target.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    target.load_state_dict(state)
    assert_identical(target.get_extra_state(), source.get_extra_state())
    assert_identical(target.weight.detach(), source.weight.detach())


@no_dist
def test_a_distributed_checkpoint_of_an_older_release_loads_into_a_fresh_module(tmp_path):
    source, target = trained(), make("Linear", seed=50)
    pickled = pickle.dumps(named_buffers(source))
    state = {"_extra_state": torch.frombuffer(bytearray(pickled), dtype=torch.uint8)}
    checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    state = {"_extra_state": target.get_extra_state()}
    checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    target.set_extra_state(state["_extra_state"])
    assert_identical(target.get_extra_state(), source.get_extra_state())


@no_dist
def test_safetensors_of_a_distributed_checkpoint_load_into_a_fresh_module(tmp_path):
    pytest.importorskip("safetensors")
    source, target = trained(), make("Linear", seed=50)
    for written, read in (source, target), (make("Linear"), make("Linear")):
        folder = tmp_path / str(id(written))
        writer = checkpoint.HuggingFaceStorageWriter(path=str(folder))
        checkpoint.save(written.state_dict(), storage_writer=writer, no_dist=True)
        state = read.state_dict()
        reader = checkpoint.HuggingFaceStorageReader(str(folder))
        checkpoint.load(state, storage_reader=reader, no_dist=True)
        read.load_state_dict(state)
        assert_identical(read.get_extra_state(), written.get_extra_state())


@no_dist
def test_a_distributed_checkpoint_of_another_size_is_refused(tmp_path):
    source, target = make("Linear"), trained()
    before = target.get_extra_state()
    checkpoint.save(source.state_dict(), checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(checkpoint.CheckpointException, match="Size mismatch"):
        checkpoint.load(target.state_dict(), checkpoint_id=tmp_path, no_dist=True)
    assert_identical(target.get_extra_state(), before)


def test_a_fresh_state_is_an_ordinary_tensor_to_all_others():
    state = make("Linear").get_extra_state()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    for copied in (
        copy.deepcopy(state),
        state.clone(),
        pickle.loads(pickle.dumps(state)),
        get_model_state_dict(make("Linear"), options=options)["_extra_state"],
    ):
        assert copied.shape == (0,)
        assert copied.dtype == torch.uint8
        assert copied is not state
        make("Linear").set_extra_state(copied)
    assert type(pickle.loads(pickle.dumps(state))) is torch.Tensor
    assert repr(state).startswith("FreshState([]")
    assert tuple(state.size()) == (0,) and len(state.size()) == 1
    assert state.numel() == 0 and state.tolist() == []
    told = pickle.loads(pickle.dumps(state.size()))  # to other ranks, which allocate by it
    assert type(told) is torch.Size and torch.empty(told).shape == (0,)
    file = io.BytesIO()
    torch.save({"a": state}, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)["a"]) is torch.Tensor


@pytest.mark.parametrize("length", [1, 2, 9])
def test_another_history_length_keeps_scales_and_newest_maxima(length):
    source, target = trained(), make("Linear")
    target.load_state_dict(source.state_dict())
    with te.autocast(recipe=DelayedScaling(amax_history_len=length)):
        target.init_fp8_metadata()
    old, new = named_buffers(source), named_buffers(target)
    for name in ("scale_fwd", "scale_bwd"):
        assert_identical(new[name], old[name])
    for name in ("amax_history_fwd", "amax_history_bwd"):
        assert new[name].shape[0] == length
        kept = min(length, LENGTH) - 1
        if kept:
            assert_identical(new[name][-kept:], old[name][-kept:])


def test_a_state_waits_for_its_recipe_and_is_saved_meanwhile():
    state = trained().state_dict()
    module = make("Linear")
    module.load_state_dict(state)
    assert_identical(module.get_extra_state(), state["_extra_state"])
    assert_identical(copy.deepcopy(module).get_extra_state(), state["_extra_state"])
    run(module, make_input())
    step(module, CURRENT)
    assert_identical(module.get_extra_state(), state["_extra_state"])


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_torch_save_with_weights_only(kind):
    source, target, file = trained(kind), make(kind, seed=50), io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True))
    assert_same(step(target), step(source))


@pytest.mark.parametrize("kind", LINEAR_KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_a_state_of_its_own(kind, copied):
    source = trained(kind)
    before = source.get_extra_state()
    twin = copied(source)
    assert_identical(twin.get_extra_state(), before)
    assert_same(step(twin, seed=8), step(copy.deepcopy(source), seed=8))
    assert not torch.equal(twin.get_extra_state(), before)
    assert_identical(source.get_extra_state(), before)


# ---- nothing to restore --------------------------------------------------------------------------

HEADER_ALONE = struct.pack("<8sHHIIII", b"TEXSTATE", 1, 0, 0, 0, 0, 0).ljust(HEADER_BYTES, b"\0")


def as_bytes(data):
    return torch.tensor(list(data), dtype=torch.uint8)


NOTHING = {
    "None": None,
    "empty tensor": torch.empty(0, dtype=torch.uint8),
    "empty file": io.BytesIO(),
    "header alone": as_bytes(HEADER_ALONE),
    "pickle of a recipe without state": as_bytes(pickle.dumps({"recipe": CURRENT})),
    "pickle without a recipe": as_bytes(pickle.dumps({"extra_fp8_variables": {"num_gemms": 1}})),
    "pickle of a number": as_bytes(pickle.dumps(3)),
}


@pytest.mark.parametrize("was_used", [False, True])
@pytest.mark.parametrize("name", NOTHING)
def test_a_state_without_delayed_scaling_means_a_fresh_one(name, was_used):
    module = make("Linear")
    module.load_state_dict(trained().state_dict())
    if was_used:
        step(module)
    module.set_extra_state(NOTHING[name])
    if not was_used:
        assert module.get_extra_state().numel() == 0
        step(module)
        assert_same(recipe_state(module), recipe_state(stepped_once()))
    else:
        assert_same(recipe_state(module), fresh_buffers(module))


def stepped_once():
    module = make("Linear")
    module.load_state_dict({**trained().state_dict(), "_extra_state": None})
    step(module)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_plain_modules_load_strictly(kind):
    module, source = make(kind), make(kind, seed=50)
    weights = {name: value for name, value in source.state_dict().items() if "extra" not in name}
    module.load_state_dict(weights)
    for name, value in weights.items():
        assert_identical(module.state_dict()[name], value)
    nested = torch.nn.Sequential(module)
    nested.load_state_dict({f"0.{name}": value for name, value in weights.items()})
    name, _ = weights.popitem()
    with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
        module.load_state_dict(weights)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        module.load_state_dict({**source.state_dict(), "other": torch.zeros(1)})


def test_weights_load_into_torchs_linear_but_for_one_key():
    module = trained()
    plain = torch.nn.Linear(module.in_features, module.out_features)
    result = plain.load_state_dict(module.state_dict(), strict=False)
    assert result.unexpected_keys == ["_extra_state"]
    assert result.missing_keys == []
    assert_identical(plain.weight.detach(), module.weight.detach())


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("state", [None, torch.empty(0, dtype=torch.uint8), torch.ones(9)])
def test_norms_take_a_state_and_have_none(kind, state):
    module = make(kind)
    assert "_extra_state" not in module.state_dict()
    module.load_state_dict({**module.state_dict(), "_extra_state": state})
    torch.nn.Sequential(module).load_state_dict(
        {**torch.nn.Sequential(module).state_dict(), "0._extra_state": state}
    )


# ---- pickles of other releases -------------------------------------------------------------------


def saved_by(writer, value):
    file = io.BytesIO()
    writer(value, file)
    return file.getvalue()


WRITERS = {
    "pickle": pickle.dumps,
    "pickle, protocol 2": lambda value: pickle.dumps(value, protocol=2),
    "torch.save": lambda value: saved_by(torch.save, value),
    "torch.save, legacy": lambda value: saved_by(
        lambda v, f: torch.save(v, f, _use_new_zipfile_serialization=False), value
    ),
}
CONTAINERS = {"tensor": as_bytes, "file": io.BytesIO}


@pytest.mark.parametrize("has_recipe", [True, False])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_pickled_states_are_read(writer, container, has_recipe):
    source, target = trained(), make("Linear")
    payload = {
        **named_buffers(source),
        "scale_inv_fwd": torch.ones(3),  # dropped: of 1.x
        "extra_fp8_variables": {"num_gemms": 1, "fp8_max_fwd": 448.0, "names": ("a", [1])},
    }
    if has_recipe:
        payload["recipe"] = DELAYED
    target.load_state_dict(source.state_dict())
    target.set_extra_state(None)
    target.set_extra_state(CONTAINERS[container](WRITERS[writer](payload)))
    assert_identical(target.get_extra_state(), source.get_extra_state())
    assert_same(step(target), step(source))


class _MemberByName:
    """Pickled as enum members are by some releases of Python: getattr(class, name)."""

    def __reduce__(self):
        return getattr, (recipes.Format, "HYBRID")


@pytest.mark.parametrize("writer", WRITERS)
def test_members_of_enums_are_read_however_python_wrote_them(writer):
    source, target = trained(), make("Linear")
    target.set_extra_state(
        as_bytes(WRITERS[writer]({**named_buffers(source), "recipe": _MemberByName()}))
    )
    assert_identical(target.get_extra_state(), source.get_extra_state())


@pytest.mark.parametrize("writer", WRITERS)
def test_classes_of_other_recipe_packages_are_not_needed(writer, monkeypatch):
    limits = type("FormatLimits", (), {"__module__": recipes.__name__, "max_fwd": 448.0})
    source, target = trained(), make("Linear")
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "FormatLimits", limits, raising=False)
        data = WRITERS[writer]({**named_buffers(source), "recipe": limits()})
    target.set_extra_state(as_bytes(data))
    assert_identical(target.get_extra_state(), source.get_extra_state())


# ---- damaged states ------------------------------------------------------------------------------


class Attack:
    """Runs on unpickling, unless refused."""

    ran = False

    @staticmethod
    def run():
        Attack.ran = True

    def __reduce__(self):
        return Attack.run, ()


def altered(**changes):
    """A native state with other header fields, or other values from a flat position on."""
    data = bytearray(trained().get_extra_state().tolist())
    fields = dict(
        zip(
            ("magic", "version", "kind", "n_fwd", "length_fwd", "n_bwd", "length_bwd"),
            struct.unpack_from("<8sHHIIII", data),
            strict=True,
        )
    )
    for position, value in changes.pop("values", {}).items():
        struct.pack_into("<f", data, HEADER_BYTES + 4 * position, value)
    struct.pack_into("<8sHHIIII", data, 0, *{**fields, **changes}.values())
    return as_bytes(data)


def pickled(**changes):
    buffers = {**named_buffers(trained()), **changes}
    return as_bytes(pickle.dumps({k: v for k, v in buffers.items() if v is not Ellipsis}))


EMPTY_HISTORIES = as_bytes(
    struct.pack("<8sHHIIII", b"TEXSTATE", 1, 1, 3, 0, 2, 0).ljust(HEADER_BYTES, b"\0")
    + struct.pack("<5f", *[1.0] * 5)
)
NO_SLOTS = as_bytes(
    struct.pack("<8sHHIIII", b"TEXSTATE", 1, 1, 0, 4, 0, 4).ljust(HEADER_BYTES, b"\0")
)

DAMAGED = {
    "a dict": (TypeError, lambda: {}, "state is a dict; a uint8 tensor.*Unsupported checkpoint"),
    "bytes": (TypeError, lambda: b"TEXSTATE", "state is a bytes"),
    "floats": (TypeError, lambda: torch.ones(64), r"state is a torch.strided tensor of torch.floa"),
    "sparse": (TypeError, lambda: altered().to_sparse(), r"state is a torch.sparse_coo tensor"),
    "meta": (ValueError, lambda: altered().to("meta"), "state is on meta"),
    "half a header": (ValueError, lambda: altered()[:20], "state has 20 bytes; a header of 64"),
    "magic alone": (ValueError, lambda: altered()[:8], "state has 8 bytes; a header of 64"),
    "half a magic": (ValueError, lambda: altered()[:4], "pickled state of 4 bytes cannot be read"),
    "truncated": (ValueError, lambda: altered()[:-1], "state has 163 bytes; its header asks for 1"),
    "too long": (ValueError, lambda: torch.cat([altered(), altered()]), "its header asks for 164"),
    "version": (ValueError, lambda: altered(version=2), "state has version 2 and kind 1"),
    "kind": (ValueError, lambda: altered(kind=7), "state has version 1 and kind 7"),
    "huge": (ValueError, lambda: altered(length_fwd=2**32 - 1), "its header asks for"),
    "no history": (ValueError, lambda: EMPTY_HISTORIES, "amax_history_fwd of length 0"),
    "no slots": (ValueError, lambda: NO_SLOTS, "forward state has 0 slots; 3 are required"),
    "another module": (
        *(ValueError, lambda: trained("LayerNormMLP").get_extra_state()),
        "forward state has 6 slots; 3 are required",
    ),
    "scale 0": (ValueError, lambda: altered(values={0: 0.0}), "scale_fwd .*; positive finite"),
    "scale < 0": (ValueError, lambda: altered(values={1: -2.0}), "scale_fwd .*; positive finite"),
    "scale NaN": (ValueError, lambda: altered(values={15: float("nan")}), "scale_bwd .*nan"),
    "scale inf": (ValueError, lambda: altered(values={16: float("inf")}), "scale_bwd .*inf"),
    "amax < 0": (ValueError, lambda: altered(values={4: -1.0}), "amax_history_fwd with minimum -1"),
    "pickle, no amax": (
        ValueError,
        lambda: pickled(amax_history_bwd=...),
        "amax_history_bwd.*is m",
    ),
    "pickle, list": (ValueError, lambda: pickled(scale_fwd=[1.0] * 3), "scale_fwd .*is a list"),
    "pickle, ints": (
        *(ValueError, lambda: pickled(scale_fwd=torch.ones(3, dtype=torch.int64))),
        "scale_fwd .*is a tensor of torch.int64",
    ),
    "pickle, shape": (
        *(ValueError, lambda: pickled(amax_history_fwd=torch.zeros(12))),
        r"amax_history_fwd of shape \(12,\)",
    ),
    "pickle, slots": (
        *(ValueError, lambda: pickled(scale_fwd=torch.ones(4))),
        r"scale_fwd of shape \(4,\)",
    ),
    "pickle, NaN": (ValueError, lambda: pickled(scale_fwd=torch.full((3,), torch.nan)), "positive"),
    "pickle, truncated": (ValueError, lambda: pickled()[:-9], "pickled state .* cannot be read"),
    "noise": (ValueError, lambda: as_bytes(b"\x93NUMPY" * 9), "pickled state .* cannot be read"),
    "zip": (ValueError, lambda: as_bytes(saved_by(torch.save, Attack())), "cannot be read"),
    "attack": (ValueError, lambda: as_bytes(pickle.dumps(Attack())), "run.* is not part of a reci"),
    "print": (ValueError, lambda: as_bytes(b"cbuiltins\nprint\n(tR."), "builtins.print is not par"),
}


@pytest.mark.parametrize("was_used", [False, True])
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_states_are_refused_and_change_nothing(name, was_used):
    error, make_state, message = DAMAGED[name]
    state, source = make_state(), trained()
    module = make("Linear")
    module.load_state_dict(source.state_dict())
    if was_used:
        with te.autocast(recipe=DELAYED):
            module.init_fp8_metadata()
    weight = module.weight.detach().clone()
    with pytest.raises(error, match=rf"(?s)^Linear\.set_extra_state: .*{message}.*\. \w"):
        module.set_extra_state(state)
    other = {**make("Linear", seed=50).state_dict(), "_extra_state": state}
    with pytest.raises(RuntimeError, match=message):
        module.load_state_dict(other)
    assert_identical(module.weight.detach(), weight)
    assert_identical(module.get_extra_state(), source.get_extra_state())
    assert not Attack.ran


def test_overflows_in_a_history_are_no_damage():
    state = altered(values={3: float("inf"), 4: float("nan")})
    module = make("Linear")
    module.set_extra_state(state)
    assert_identical(module.get_extra_state(), state)


def test_strided_states_are_read():
    state = trained().get_extra_state()
    module = make("Linear")
    module.set_extra_state(torch.stack([state, state], dim=1)[:, 0])
    assert_identical(module.get_extra_state(), state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_archives_are_refused():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), file)
    with pytest.raises(ValueError, match="TorchScript archive"):
        make("Linear").set_extra_state(file)
