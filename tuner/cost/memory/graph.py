"""Follows one decoder layer tensor by tensor: what its forward keeps and its backward needs.

A small stand-in for autograd: operators in the order of forward, each with what it saves for
backward. Backward goes through them in reverse, as torch's engine does: an operator's gradients are
born before what it saved, and the gradient that it was given, are freed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate


class EventKind(IntEnum):
    """Names what an event changes."""

    KEPT = 0  # bytes that live from forward to backward, per sequence
    PASSING = 1  # bytes that come and go within a phase, per sequence
    CAST = 2  # elements of weights that are cast for computing, until backward
    GRADIENT = 3  # elements of a weight whose gradient is born
    UNCAST_GRADIENT = 4  # the same of a weight that autocast passed over


# What changes, and by how much: negative where memory is freed.
Event = tuple[EventKind, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A layer's events. Its input is there before forward; so is its output's gradient before
    backward, which takes it over and leaves the input's in its place."""

    forward: tuple[Event, ...]  # in order; afterwards the output is there in the place of the input
    unsaved: tuple[Event, ...]
    """The same where nothing is saved, under checkpointing; the input stays beside the output."""
    again: tuple[Event, ...]  # forward for backward's sake: input and output stay as they were
    selected: tuple[Event, ...]
    """As ``unsaved``, but what :meth:`Graph.select` names is saved: selective checkpointing."""
    selected_again: tuple[Event, ...]  # as ``again`` after that: what was selected is there
    staying_bytes: float  # of what :meth:`Graph.stay` names but the input, per sequence
    selected_bytes: float  # of what is selected, per sequence
    unused_bytes: float  # of that, what is selected in vain: it is freed when backward has ended
    input_bytes: float  # of the layer's input, per sequence
    backward: tuple[Event, ...]  # in order
    saves_input: bool  # whether the input is among what forward leaves for backward
    kept_bytes: float
    """What forward leaves for backward, per sequence; the input too, if it is saved."""
    cast_elements: float  # elements of cast weights that forward leaves for backward
    unsaved_cast_elements: float  # the same where nothing is saved
    weight_elements: float  # elements of all weights


@dataclass(slots=True, kw_only=True)
class _Op:
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saves: tuple[int, ...]
    passes: bool
    forward_work: float
    backward_work: float
    weights: tuple[float, ...]
    casts: bool
    unpacks: tuple[float, float]


@dataclass(slots=True)
class Graph:
    """Operators of a layer. Tensors are numbers; 0 is the layer's input."""

    input_bytes: float  # of the layer's input, per sequence
    casts_weights: bool = False  # whether each weight is cast before it is used (autocast)
    input_needs_gradient: bool = True  # false before the first thing that is trained
    keeps_casts: bool = True
    """Whether a cast weight lives on where nothing saves it (autocast's own cache)."""
    _sizes: list[float] = field(init=False)
    _gradients: list[float] = field(init=False)
    _ops: list[_Op] = field(init=False, default_factory=list)
    _bases: dict[int, int] = field(init=False, default_factory=dict)
    """Tensors that are parts of another's memory, and whose."""
    _selected: set[int] = field(init=False, default_factory=set)
    _staying: set[int] = field(init=False, default_factory=set)
    _held: dict[int, int] = field(init=False, default_factory=dict)
    """The operator to which a function's local keeps a tensor alive, by tensor."""

    def __post_init__(self) -> None:
        self._sizes, self._gradients = [self.input_bytes], [self.input_bytes]

    @property
    def next(self) -> int:
        return len(self._sizes)

    def op(
        self,
        size: float,
        *inputs: int,
        saves: Sequence[int] = (),
        output_saved: bool = False,
        passes: bool = False,
        forward_work: float = 0.0,
        backward_work: float = 0.0,
        weight: float = 0.0,
        casts: bool = True,
        unpacks: tuple[float, float] = (0.0, 0.0),
    ) -> int:
        """One operator with one output.

        Inputs get a gradient; ``saves``, and the output if ``output_saved``, are kept for its
        backward. With ``passes`` the output's gradient is the inputs' as it is (a sum, a view).
        Work is of buffers that die before it returns. It computes with a weight of so many
        elements, which autocast ``casts`` where it knows the operator; or with one that it
        ``unpacks`` for itself, as forward does so backward: its elements, and those of its scales.
        """
        kept = (*saves, len(self._sizes)) if output_saved else tuple(saves)
        return self.ops(
            (size,), *inputs, saves=kept, passes=passes, forward_work=forward_work,
            backward_work=backward_work, weights=(weight,) if weight else (), casts=casts,
            unpacks=unpacks,
        )[0]  # fmt: skip

    def ops(
        self,
        sizes: Sequence[float],
        *inputs: int,
        saves: Sequence[int] = (),
        passes: bool = False,
        forward_work: float = 0.0,
        backward_work: float = 0.0,
        weights: Sequence[float] = (),
        casts: bool = True,
        views: bool = False,
        unpacks: tuple[float, float] = (0.0, 0.0),
    ) -> tuple[int, ...]:
        """One operator with an output of each size; see :meth:`op`.

        With ``views`` the outputs are parts of the input's memory; their gradients are not.
        """
        first = len(self._sizes)
        self._sizes += [0.0] * len(sizes) if views else sizes
        self._gradients += sizes
        outputs = tuple(range(first, first + len(sizes)))
        if views:
            self._bases |= dict.fromkeys(outputs, inputs[0])
        self._ops.append(
            _Op(
                inputs=inputs, outputs=outputs, saves=tuple(saves), passes=passes,
                forward_work=forward_work, backward_work=backward_work, weights=tuple(weights),
                casts=self.casts_weights and casts, unpacks=unpacks,
            )
        )  # fmt: skip
        return outputs

    def hold(self, *tensors: int) -> None:
        """A function returns that had these as locals: they lived to the last operator so far."""
        self._held |= dict.fromkeys(tensors, len(self._ops) - 1)

    def select(self, *tensors: int) -> None:
        self._selected |= set(tensors)

    def stay(self, *tensors: int) -> None:
        """An operator keeps these by itself, where checkpointing does not drop them."""
        self._staying |= set(tensors)

    def compile(self, output: int) -> Program:
        """The events of a layer whose result is ``output``, of the size of its input."""
        # tensors with a gradient; operators before the first that has one save nothing
        needs = {0} if self.input_needs_gradient else set()
        for index, op in enumerate(self._ops):
            if op.weights or needs & set(op.inputs):
                needs |= set(op.outputs)
            else:
                self._ops[index] = replace(op, saves=())
        saved = {tensor for op in self._ops for tensor in op.saves}
        # the operator after which each tensor's memory is freed, unless it is saved
        ops = self._ops
        last_use = {tensor: i for i, op in enumerate(ops) for tensor in (*op.outputs, *op.inputs)}
        for tensor, index in self._held.items():
            last_use[tensor] = max(last_use[tensor], index)
        for part in sorted(self._bases, reverse=True):
            base = self._bases[part]
            last_use[base] = max(last_use[base], last_use[part])
        last_use[0] = last_use[output] = len(ops)  # the caller holds them
        forward = _forward(self._sizes, self._ops, saved, last_use)
        unsaved = self._without_casts(_forward(self._sizes, self._ops, set(), last_use))
        selected = _forward(self._sizes, self._ops, self._selected, last_use)
        selected_again, unused = self._selected_again(saved, last_use, output)
        ends = [(EventKind.PASSING, -self._sizes[0])]
        ends += [(EventKind.KEPT, self._sizes[0])] if 0 in saved else []
        backward = _backward(self._sizes, self._gradients, self._ops, output, needs)
        weights = sum(sum(op.weights) for op in self._ops)
        cast = sum(sum(op.weights) for op in self._ops if op.casts)
        return Program(
            forward=_shortened(forward + ends),
            unsaved=_shortened(unsaved),
            again=_shortened([*forward, (EventKind.PASSING, -self._sizes[output])]),
            selected=_shortened(self._without_casts(selected)),
            selected_again=_shortened(selected_again),
            staying_bytes=sum(self._sizes[tensor] for tensor in self._staying - {0}),
            selected_bytes=sum(self._sizes[tensor] for tensor in self._selected),
            unused_bytes=unused,
            input_bytes=self._sizes[0],
            saves_input=0 in saved,
            backward=_shortened(backward),
            kept_bytes=sum(self._sizes[tensor] for tensor in saved),
            cast_elements=cast,
            unsaved_cast_elements=cast * self.keeps_casts,
            weight_elements=weights,
        )

    def _without_casts(self, events: list[Event]) -> list[Event]:
        """The same, where a cast weight that nothing saves dies after its use."""
        if self.keeps_casts:
            return events
        return [
            one
            for kind, size in events
            for one in ((kind, size), (kind, -size))[: 1 + (kind is EventKind.CAST)]
        ]

    def _selected_again(
        self, saved: set[int], last_use: dict[int, int], output: int
    ) -> tuple[list[Event], float]:
        """Forward for backward's sake where outputs are there already, and bytes of those unused.

        torch takes each as its operator's turn comes (``_CachedTorchDispatchMode``), and stops at
        the last operator that saves something, before that computes.
        """
        ops, sizes = self._ops, self._sizes
        last = max((i for i, op in enumerate(ops) if op.saves), default=0)
        unused = {t for op in ops[last:] for t in op.outputs if t in self._selected - saved}
        taken = self._selected - unused
        there = [0.0 if t in self._selected else size for t, size in enumerate(sizes)]
        events: list[Event] = []
        for index, op in enumerate(ops):
            events += _forward(there, [op], saved, {})
            dying = [t for t, end in last_use.items() if end == index and t not in saved]
            events += [(EventKind.PASSING, -there[t]) for t in dying]
            events += [(EventKind.KEPT, -sizes[t]) for t in dying if t in taken]
        events.append((EventKind.PASSING, -there[output]))
        events += [(EventKind.KEPT, -sizes[t]) for t in taken - saved if last_use[t] >= len(ops)]
        return events, sum(sizes[t] for t in unused)


def _forward(
    sizes: list[float], ops: list[_Op], saved: set[int], last_use: dict[int, int]
) -> list[Event]:
    dying: dict[int, list[int]] = {}
    for tensor, index in last_use.items():
        dying.setdefault(index, []).append(tensor)
    events: list[Event] = []
    for index, op in enumerate(ops):
        if op.casts:
            events += [(EventKind.CAST, weight) for weight in op.weights]
        for tensor in op.outputs:
            kind = EventKind.KEPT if tensor in saved else EventKind.PASSING
            events.append((kind, sizes[tensor]))
        events += [(EventKind.PASSING, op.forward_work), (EventKind.PASSING, -op.forward_work)]
        if whole := op.unpacks[0] + 2 * op.unpacks[1]:  # scales, and these about their mean
            events += [(EventKind.CAST, whole), (EventKind.CAST, -whole)]
        for tensor in dying.get(index, ()):
            if tensor not in saved:
                events.append((EventKind.PASSING, -sizes[tensor]))
    return events


def _shortened(events: list[Event]) -> tuple[Event, ...]:
    """The same rise and fall with fewer steps.

    Between events of weights everything is of the same sequences, so of each stretch only the
    highest moment and the end matter: to that moment, and from there down to the end. Of what
    remains, by kind, frees come first, so that no moment is too high.
    """
    short: list[Event] = []
    stretch: list[Event] = []
    for event in [*events, (EventKind.GRADIENT, 0.0)]:
        if event[0] in (EventKind.KEPT, EventKind.PASSING):
            stretch.append(event)
            continue
        totals = list(accumulate((size for _, size in stretch), initial=0.0))
        top = max(range(len(totals)), key=totals.__getitem__)
        for part in (stretch[:top], stretch[top:]):
            sums = [
                (kept, sum(size for kind, size in part if kind is kept))
                for kept in (EventKind.KEPT, EventKind.PASSING)
            ]
            short += sorted(sums, key=lambda one: one[1])
        stretch = []
        short.append(event)
    return tuple(event for event in short if event[1])


class _Gradients:
    """Gradients on their way through a layer's backward; several tensors may share one."""

    def __init__(self, sizes: list[float], events: list[Event], output: int) -> None:
        self._sizes, self._events = sizes, events
        self._of: dict[int, list[float]] = {output: [sizes[output], 1]}  # bytes, references

    def take(self, tensor: int) -> list[float] | None:
        """The gradient of a tensor, whose reference it no longer is."""
        return self._of.pop(tensor, None)

    def give(self, tensor: int, gradient: list[float]) -> None:
        """One more part of a tensor's gradient, of which a reference is taken."""
        gradient[1] += 1
        known = self._of.get(tensor)
        if known is None:
            self._of[tensor] = gradient
            return
        total = self.new(self._sizes[tensor])  # a sum is a new tensor where a mode looks on
        total[1] = 1
        self.drop(known)
        self._of[tensor] = total
        self.drop(gradient)

    def new(self, size: float) -> list[float]:
        """A gradient that nothing refers to yet."""
        self._events.append((EventKind.PASSING, size))
        return [size, 0]

    def drop(self, gradient: list[float]) -> None:
        gradient[1] -= 1
        if gradient[1] <= 0:
            self._events.append((EventKind.PASSING, -gradient[0]))


def _backward(
    sizes: list[float], gradient_sizes: list[float], ops: list[_Op], output: int, needs: set[int]
) -> list[Event]:
    users: dict[int, int] = {}
    casts_any = any(op.casts for op in ops)
    for op in ops:
        for tensor in op.saves:
            users[tensor] = users.get(tensor, 0) + 1
    events: list[Event] = []
    gradients = _Gradients(gradient_sizes, events, output)
    for op in reversed([op for op in ops if needs & set(op.outputs)]):
        given = [g for g in map(gradients.take, op.outputs) if g is not None]
        events.append((EventKind.PASSING, op.backward_work))
        weight, scales = op.unpacks
        if weight:
            events += [(EventKind.CAST, weight + scales), (EventKind.CAST, -scales)]
        for tensor in (tensor for tensor in op.inputs if tensor in needs):
            own = given[0] if op.passes else gradients.new(gradient_sizes[tensor])
            gradients.give(tensor, own)
        kind = EventKind.GRADIENT if op.casts or not casts_any else EventKind.UNCAST_GRADIENT
        events += [(kind, weight) for weight in op.weights]
        events += [(EventKind.CAST, -op.unpacks[0])] if op.unpacks[0] else []
        events.append((EventKind.PASSING, -op.backward_work))
        for tensor in op.saves:
            users[tensor] -= 1
            if not users[tensor]:
                events.append((EventKind.KEPT, -sizes[tensor]))
        for gradient in given:
            gradients.drop(gradient)
        if op.casts:
            events += [(EventKind.CAST, -weight) for weight in op.weights]
    return events
