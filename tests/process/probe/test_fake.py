"""Fake tensors made of what was seen before are those that torch's own mode makes."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from workers.probe.dry.fake import UNKNOWN, FakeMode

ATEN = torch.ops.aten


def calls(x, y):
    """Operators with their arguments: new tensors, views, several results, constants, in place."""
    yield ATEN.mm.default, (x, y.t()), {}
    yield ATEN.view.default, (x, [2, 2, 8]), {}
    yield ATEN.t.default, (x,), {}
    yield ATEN.slice.Tensor, (x, 0, 1, 3), {}
    yield ATEN.native_dropout.default, (x, 0.5, True), {}
    yield ATEN._to_copy.default, (x,), {"dtype": torch.bfloat16}
    yield ATEN.clone.default, (x.t(),), {"memory_format": torch.contiguous_format}
    yield ATEN.cat.default, ([x, y],), {}
    yield ATEN.new_empty.default, (x, [3, 1]), {"dtype": torch.int64}
    yield ATEN.mul_.Tensor, (x, 2.0), {}
    yield ATEN.empty_strided.default, ([4, 2], [1, 4]), {"device": torch.device("cpu")}


def told(made):
    if isinstance(made, tuple | list):
        return [told(one) for one in made]
    if not isinstance(made, torch.Tensor):
        return made
    assert type(made) is FakeTensor
    place = (made.shape, made.stride(), made.storage_offset(), made.untyped_storage().nbytes())
    return [*place, made.dtype, made.device, made.requires_grad, torch._C._dispatch_keys(made)]


def made_by(mode):
    with mode:
        x, y = torch.empty(4, 8), torch.empty(6, 8)[:4]
        return [(func, args, kwargs, func(*args, **kwargs)) for func, args, kwargs in calls(x, y)]


def test_what_is_known_is_what_torch_makes():
    mode = FakeMode()
    reference = made_by(FakeTensorMode())
    first = made_by(mode)
    assert [told(one[-1]) for one in first] == [told(one[-1]) for one in reference]
    for func, args, kwargs, made in first:
        known = mode.known(func, args, kwargs)
        assert told(known) == told(made), func
        of_input = isinstance(made, torch.Tensor) and args and isinstance(args[0], torch.Tensor)
        if of_input and made.untyped_storage()._cdata == args[0].untyped_storage()._cdata:
            assert known.untyped_storage()._cdata == made.untyped_storage()._cdata
            assert (known is args[0]) is (made is args[0])
        elif isinstance(made, torch.Tensor):
            assert known.untyped_storage()._cdata != made.untyped_storage()._cdata


def test_what_was_not_seen_or_is_no_plain_tensor_is_unknown():
    mode = FakeMode()
    made_by(mode)
    with mode:
        x, other = torch.empty(4, 8), torch.empty(5, 8)
    assert mode.known(ATEN.t.default, (x,), {}) is not UNKNOWN
    assert mode.known(ATEN.t.default, (other,), {}) is UNKNOWN
    assert mode.known(ATEN.t.default, (torch.empty(4, 8),), {}) is UNKNOWN
    with FakeTensorMode():
        elsewhere = torch.empty(4, 8)
    assert mode.known(ATEN.t.default, (elsewhere,), {}) is UNKNOWN
    assert mode.known(ATEN.mul_.Tensor, (x, 2), {}) is UNKNOWN  # a float was seen, no integer
