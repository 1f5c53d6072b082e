from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.cost.memory.graph import EventKind, Graph


def net(events, *kinds):
    return sum(size for kind, size in events if kind in kinds)


def highest(events, start=0.0):
    top = level = start
    for kind, size in events:
        level += size if kind in (EventKind.KEPT, EventKind.PASSING) else 0.0
        top = max(top, level)
    return top


def linear_then_square(*, casts=False, keeps=True):
    """out = square(linear(x)) + x, of 8, 4 and 8 bytes; the linear has 10 weights."""
    graph = Graph(8, casts_weights=casts, keeps_casts=keeps)
    inner = graph.op(4, 0, saves=(0,), weight=10)
    squared = graph.op(8, inner, saves=(inner,))
    return graph.compile(graph.op(8, squared, 0, passes=True))


def test_forward_keeps_what_is_saved():
    program = linear_then_square()
    assert program.kept_bytes == 8 + 4
    assert program.saves_input
    assert net(program.forward, EventKind.KEPT) == 12
    assert net(program.forward, EventKind.PASSING) == 0  # the output in the place of the input
    assert highest(program.forward) == 4 + 8 + 8
    assert program.weight_elements == 10


def test_backward_frees_all_and_leaves_one_gradient():
    program = linear_then_square()
    assert net(program.backward, EventKind.KEPT) == -12
    assert net(program.backward, EventKind.PASSING) == 0
    assert [e for e in program.backward if e[0] is EventKind.GRADIENT] == [(EventKind.GRADIENT, 10)]
    # the output's gradient (8, there already) is the input's too; then the linear adds 8, and the
    # sum of both is 8 more, while the inner gradient of 4 lives; what was saved of 4 is gone
    assert highest(program.backward) == 4 - 4 + 8 + 8


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    saved=st.lists(st.booleans(), min_size=12, max_size=12),
    residual=st.booleans(),
)
@settings(max_examples=examples(100))
def test_what_forward_keeps_backward_frees(sizes, saved, residual):
    graph, x = Graph(7), 0
    for size, keep in zip(sizes, saved, strict=False):
        x = graph.op(size, x, saves=(x,) if keep else (), backward_work=3)
    x = graph.op(7, x)
    if residual:
        x = graph.op(7, x, 0, passes=True)
    program = graph.compile(x)
    assert net(program.forward, EventKind.KEPT) == program.kept_bytes
    assert net(program.backward, EventKind.KEPT) == -program.kept_bytes
    assert net(program.backward, EventKind.PASSING) == 0
    assert net(program.forward, EventKind.PASSING) == 0  # the output in the place of the input
    assert highest(program.forward) >= program.kept_bytes - 7


def test_locals_live_until_their_function_returns():
    def program(*, held):
        graph = Graph(4)
        first = graph.op(8, 0)
        last = graph.op(4, graph.op(2, first))
        if held:
            graph.hold(first)
        return graph.compile(graph.op(4, last))

    assert highest(program(held=False).unsaved) == 8 + 2
    assert highest(program(held=True).unsaved) == 8 + 2 + 4
    assert net(program(held=True).unsaved, EventKind.PASSING) == 4  # the output, beside the input
