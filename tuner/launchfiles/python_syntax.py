"""A configuration of torchtitan's in Python: what it says, and changes of it where they stand."""

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tuner.errors import UsageError
from tuner.launchfiles import torchtitan
from tuner.launchfiles.editing import spliced

# Objects of a configuration whose fields are looked at, and two that are looked at whole. Until
# June 2026 checkpointing was an object with a ``mode``.
_SECTIONS = ("training", "parallelism", "compile")
_CHECKPOINT, _LOSS = "activation_checkpoint", "loss"
_POLICIES = {"FullAC": "full", "MemoryBudgetAC": "memory_budget"}
# What a registered configuration is named, such as ``llama3_8b``.
_NAMED = re.compile(r"\b(?P<name>llama3|qwen3)_(?P<flavor>\d+(?:_\d+)?b)\b")


class _Said(NamedTuple):
    section: str
    field: str  # empty where the whole section is given
    node: ast.expr | ast.AugAssign


class _Reader(ast.NodeVisitor):
    """Gathers what a configuration says, as it stands there: ``training=Config(field=value)`` where
    a configuration is made, ``config.training.field = value`` and ``config.training = ...``."""

    def __init__(self) -> None:
        self.said: list[_Said] = []

    def visit_Call(self, node: ast.Call) -> None:
        named = ast.unparse(node.func).endswith("Trainer.Config")
        if not named and not any(one.arg in _SECTIONS for one in node.keywords):
            self.generic_visit(node)
            return
        for one in node.keywords:  # and not inside of them: that is said of other objects
            self._add(one.arg or "", one.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if not isinstance(target, ast.Attribute):
            self.generic_visit(node)
        elif (section := _last_name(target.value)) in (*_SECTIONS, _CHECKPOINT, _LOSS):
            self.said.append(_Said(section, target.attr, node.value))
        else:
            self._add(target.attr, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Attribute) and _last_name(target.value) in _SECTIONS:
            self.said.append(_Said(_last_name(target.value), target.attr, node))

    def _add(self, section: str, value: ast.expr) -> None:
        inner = value.keywords if isinstance(value, ast.Call) else []
        by_mode = section == _CHECKPOINT and any(one.arg == "mode" for one in inner)
        if section in _SECTIONS or by_mode:
            self.said += (_Said(section, one.arg, one.value) for one in inner if one.arg)
        elif section in (_CHECKPOINT, _LOSS):
            self.said.append(_Said(section, "", value))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _said_in(node: ast.AST) -> list[_Said]:
    reader = _Reader()
    reader.visit(node)
    return reader.said


def _called(node: ast.AST) -> set[str]:
    return {one.func.id for one in ast.walk(node)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}  # fmt: skip


def _configurations(tree: ast.Module) -> list[str]:
    """Names of what is a configuration by itself: functions that need no argument, and variables.
    Others help to make one: they need arguments, or another configuration calls them."""
    found: dict[str, bool] = {}
    helping: set[str] = set()
    for one in tree.body:
        if isinstance(one, ast.FunctionDef):
            returned = ast.unparse(one.returns) if one.returns else ""
            given = (len(one.args.args) == len(one.args.defaults)) and all(one.args.kw_defaults)
            is_one = bool(returned.strip("'").endswith("Trainer.Config") or _said_in(one))
            found[one.name] = is_one and given
            helping |= _called(one) - {one.name} if is_one else set()
        elif isinstance(one, ast.Assign | ast.AnnAssign) and _said_in(one):
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            found[ast.unparse(target).partition(".")[0]] = True
    return [name for name, is_one in found.items() if is_one and name not in helping]


def _in_order(tree: ast.Module) -> list[_Said]:
    """What is said, what holds last: a configuration begins with what those say that it calls.

    Raises:
        UsageError: the file has several configurations.
    """
    if len(names := _configurations(tree)) > 1:
        allowed = f"must have one; keep one of {', '.join(names)[:1000]}"
        raise UsageError("file", f"{len(names)} configurations", allowed)
    body = sorted(tree.body, key=lambda one: getattr(one, "name", None) in names)
    return [said for statement in body for said in _said_in(statement)]


def _literal(node: ast.AST) -> Any:
    """A number, also of a product, a truth or a text; ``None`` of anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _literal(node.left), _literal(node.right)
        return left * right if isinstance(left, int) and isinstance(right, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def _loss(node: ast.AST) -> dict[str, Any]:
    """What is said of a loss: ``ChunkedLossWrapper``, which was ``ChunkedCELoss`` until June 2026,
    computes it part by part."""
    word, given = ast.unparse(node), node.keywords if isinstance(node, ast.Call) else []
    parts = next((_literal(one.value) for one in given if one.arg == "num_chunks"), None)
    if "Chunked" in word or parts is not None:
        return {"chunked": True, "num_chunks": parts}
    is_plain = "CrossEntropy" in word or "loss_fn" in word
    return {"chunked": False} if is_plain else {"chunked": False, "other": word[:100]}


def parse_python(text: str) -> dict[str, Any]:
    """What a configuration says, by section and field; empty where nothing is said.

    What is no plain value is the text of its expression. ``base`` is the registered configuration
    that it begins with, as far as :data:`torchtitan.BASES` knows what that says.
    """
    tree = ast.parse(text)
    said = _in_order(tree)
    if not said:
        return {}
    own = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    base = next((one for one in sorted(_called(tree) - own) if _NAMED.fullmatch(one)), "")
    found: dict[str, Any] = {
        name: dict(one) for name, one in torchtitan.BASES.get(base, {}).items()
    }
    for section, field, node in said:
        value = _literal(node)
        if section == _CHECKPOINT and not field:
            word = ast.unparse(node)
            modes = (mode for policy, mode in _POLICIES.items() if policy in word)
            mode = "none" if word == "None" else next(modes, "selective")
            found[section] = {"mode": mode} if mode == "none" else {"mode": mode, "policy": word}
        elif section == _LOSS and not field:
            found[section] = _loss(node)
        else:
            is_plain = isinstance(node, ast.Constant) or value is not None
            found.setdefault(section, {})[field] = value if is_plain else ast.unparse(node)
    # what the function begins with, or what its model is made by
    if named := _NAMED.search(base or text):
        flavor = named["flavor"].upper().replace("_", ".")
        found["model"] = {"name": named["name"], "flavor": flavor}
    # where a policy does not say how often, it is of operators
    found.setdefault(_CHECKPOINT, {}).setdefault("selective_ac_option", "op")
    return {**found, "base": base} if base else found


def _policy(mode: str, text: str) -> str:
    """How a policy of checkpointing is spelled in a text that imports it."""
    spelled = {str(one): how for one, how in torchtitan.POLICIES.items()}.get(mode)
    if spelled is None:
        allowed = f"no policy for activation_checkpointing={mode} is written into it"
        raise UsageError("file", "Python", allowed)
    name = spelled.partition(".")[0]
    if name != "None" and not re.search(rf"\b{name}\b", text):
        allowed = f"says nothing of {name}: import it there first, from torchtitan"
        raise UsageError("file", "Python", allowed)
    return spelled


def edit_python(text: str, wanted: Mapping[str, Any]) -> str:
    """Put changes into a text; of a field that goes, what is left says nothing.

    Raises:
        UsageError: the text does not say what is to be changed, or cannot say it.
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data, pieces, left = text.encode(), [], dict(wanted)
    for section, written, node in reversed(_in_order(ast.parse(text))):  # the last one holds
        values, field = left.get(section), written or "mode"
        if isinstance(values, Mapping) and field in values:
            value = values[field]
            start = starts[node.lineno - 1] + node.col_offset
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = starts[node.end_lineno - 1] + node.end_col_offset
            spelled = repr(value)
            if section == _CHECKPOINT and not written:
                spelled = _policy(value, text)
            if value is not None:
                pieces.append((start, end, spelled))
            left[section] = {name: one for name, one in values.items() if name != field}
    if missing := [f"{section}.{name}" for section, values in left.items() for name in values]:
        allowed = f"says nothing of {', '.join(missing)}: write them there first"
        raise UsageError("file", "Python", allowed)
    whole = [(len(data[:a].decode()), len(data[:b].decode()), new) for a, b, new in pieces]
    return spliced(text, whole)
