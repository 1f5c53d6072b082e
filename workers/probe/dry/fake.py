"""Fake tensors that are made quickly: an operator that was seen with such arguments is not run.

torch's own mode keeps what operators return too. But to look that up, and to make a fake tensor of
it, takes several times as long as all else that a dry run does of an operator; and all tensors of a
dry run are plain, strided, on one device and without symbolic shapes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._C import _DisableTorchDispatch
from torch._subclasses._fake_tensor_utils import _CacheKeyState
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

from workers.probe.checkpointing import VARLEN_ON_CPU
from workers.probe.collectives import tensors_of

# Arguments of operators that stand for themselves in a key.
_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)
# Namespaces of others' operators whose results, in shape, depend on their arguments' shapes alone.
_FUNCTIONAL = frozenset({"bitsandbytes", VARLEN_ON_CPU})
# What :meth:`FakeMode.known` returns of operators that it cannot tell: ``None`` is a result.
UNKNOWN = object()

Key = tuple[object, ...]


class _Made(NamedTuple):
    argument: int | None  # the place of the argument that it is; of one that it is a view of
    is_view: bool
    constant: object  # what is no tensor
    shape: tuple[int, ...] | None  # of a tensor
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False


class _Recipe(NamedTuple):
    is_tuple: bool
    results: tuple[_Made, ...]


def _are_numbers(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Tells whether an operator's tensors are all of whole numbers that have values."""
    tensors = tensors_of((args, kwargs))
    return bool(tensors) and all(
        type(one) is torch.Tensor and not one.is_floating_point() for one in tensors
    )


class FakeMode(FakeTensorMode):
    """torch's mode, with a cache of its own, and without the guard against being compiled."""

    def __init__(self, *, keeps_indices: bool = False) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._keeps_indices = keeps_indices  # whether whole numbers with values keep them
        self._recipes: dict[Key, _Recipe | None] = {}
        self._device = torch.device("cpu")
        with self:
            like: Any = torch.empty((), device=self._device)
        # ``FakeTensor.__new__`` (torch 2.13) takes 40 steps to come to these
        self._attributes = dict(like.__dict__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self._keeps_indices and _are_numbers(args, kwargs):
            return func(*args, **kwargs)
        found = self.known(func, args, kwargs)
        return self.dispatch(func, types, args, kwargs) if found is UNKNOWN else found

    def known(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """The operator's result on such arguments, made anew; ``UNKNOWN`` where none was seen."""
        key = self._key(func, args, kwargs)
        recipe = None if key is None else self._recipes.get(key)
        if recipe is None:
            return UNKNOWN
        if recipe.is_tuple:
            return tuple([self._make(one, args) for one in recipe.results])
        return self._make(recipe.results[0], args)

    def _cached_dispatch_impl(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        key = self._key(func, args, kwargs)  # some operators change their arguments
        found: Any = self._dispatch_impl(func, types, args, kwargs)
        if key is not None and key not in self._recipes:
            of_symbols: Any = None
            state = _CacheKeyState()
            try:  # torch's own rules of what may be kept
                entry = self._make_cache_entry(state, of_symbols, func, args, kwargs, found)
            except _BypassDispatchCache:
                self._recipes[key] = None
            else:
                self._recipes[key] = self._recipe(entry)
        return found

    def _validate_cache_key(
        self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        # torch keeps results of its own operators alone
        if func.namespace not in _FUNCTIONAL or func._schema.is_mutable:
            super()._validate_cache_key(func, args, kwargs)

    def _recipe(self, entry: Any) -> _Recipe | None:
        made = []
        for one in entry.output_infos:
            tensor = one.metadata
            if one.inplace_idx is not None:
                made.append(_Made(one.inplace_idx, False, None, None))
            elif tensor is None:
                made.append(_Made(None, False, one.constant_value, None))
            else:
                strange = tensor.is_conj or tensor.is_neg or tensor.layout is not torch.strided
                if strange or tensor.device != self._device:
                    return None
                made.append(
                    _Made(
                        one.view_idx,
                        one.view_idx is not None,
                        None,
                        tuple(tensor.shape),
                        tuple(tensor.stride),
                        tensor.storage_offset,
                        tensor.dtype,
                        tensor.requires_grad,
                    )
                )
        return _Recipe(entry.is_output_tuple, tuple(made))

    def _make(self, one: _Made, args: Sequence[Any]) -> object:
        if one.shape is None:
            return one.constant if one.argument is None else args[one.argument]
        with _DisableTorchDispatch():
            plain = torch.empty_strided(
                one.shape,
                one.stride,
                dtype=one.dtype,
                device="meta",
                requires_grad=one.requires_grad,
            )
            if one.is_view:
                storage = args[one.argument or 0].untyped_storage()
                plain.set_(storage, one.offset, one.shape, one.stride)
            made = torch.Tensor._make_subclass(
                FakeTensor,
                plain,
                one.requires_grad,
                dispatch_device=True,
                device_for_backend_keys=self._device,
            )
        made.__dict__.update(self._attributes)
        return made

    def _key(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> Key | None:
        """All that an operator's result depends on; ``None`` where that is not plain."""
        # torch's own key has 17 fields of a tensor, of which these vary here
        found: list[object] = [func, torch.get_default_dtype()]
        if not self._describe(args, found):
            return None
        if kwargs:
            for name, value in kwargs.items():
                found.append(name)
                if not self._describe((value,), found):
                    return None
        return tuple(found)

    def _describe(self, args: Sequence[object], found: list[object]) -> bool:
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:
                tensor: Any = arg
                attributes = tensor.__dict__
                if attributes["constant"] is not None or attributes["fake_mode"] is not self:
                    return False
                found += (
                    tensor.dtype,
                    tensor.shape,
                    tensor.stride(),
                    tensor.storage_offset(),
                    tensor.untyped_storage().nbytes(),
                    tensor.requires_grad,
                    tensor.fake_device,
                )
            elif kind in _PLAIN:
                found += (kind, arg)
            elif kind is list or kind is tuple:
                several: Any = arg
                found.append(len(several))
                if not self._describe(several, found):
                    return False
            else:
                return False
        return True
