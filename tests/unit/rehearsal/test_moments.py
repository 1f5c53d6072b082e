"""The highest moments of a trace, and the lines that hold them."""

import sysconfig

from workers.rehearsal.moments import NO_LINE, Mark, moments, out_of_memory

LIBRARY = sysconfig.get_path("purelib") + "/"


def frame(path, line=1, name="forward"):
    return {"filename": path, "line": line, "name": name}


def change(action, address, size, time_us, *frames):
    return {"action": action, "addr": address, "size": size, "time_us": time_us, "frames": frames}


def test_each_phase_has_its_highest_moment_with_the_lines_that_hold_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("model = build()\nloss = model(batch)\n")
    own = frame(str(script), 2, "<module>")
    inner = frame(LIBRARY + "torch/nn/functional.py", 7)
    layer = frame(LIBRARY + "transformers/models/llama/modeling_llama.py", 30)
    trace = [
        change("alloc", 1, 100, 10, frame(str(script), 1, "<module>")),
        change("alloc", 2, 50, 20, inner, layer, own),
        change("free_requested", 2, 50, 25),
        change("free_completed", 2, 50, 26),
        change("alloc", 2, 20, 40),
        change("free_completed", 9, 5, 41),  # of memory from before the history began
    ]
    marks = [Mark(5, 1, "forward"), Mark(30, 1, "backward")]
    forward, backward = moments(trace, marks)
    assert (forward["phase"], forward["step"], forward["bytes"]) == ("forward", 1, 150)
    assert forward["lines"] == [
        {"at": "train.py:1 model = build()", "within": "", "bytes": 100},
        {
            "at": "train.py:2 loss = model(batch)",
            "within": "transformers/models/llama/modeling_llama.py:30 forward",
            "bytes": 50,
        },
    ]
    assert (backward["phase"], backward["bytes"]) == ("backward", 120)
    assert backward["lines"][1] == {"at": NO_LINE, "within": "", "bytes": 20}


def test_what_is_held_when_memory_runs_out_is_of_the_last_time():
    trace = [
        change("alloc", 1, 100, 1),
        change("oom", 0, 900, 2),
        change("alloc", 2, 11, 3),
        change("oom", 0, 900, 4),
        change("free_completed", 1, 100, 5),
    ]
    assert sum(line["bytes"] for line in out_of_memory(trace)) == 111
    assert out_of_memory(trace[:1]) == []
