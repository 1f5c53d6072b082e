from workers.launchers.base import oom_kills


def machine(root, cgroup, events, vmstat):
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    (root / "proc" / "vmstat").write_text(vmstat)
    group = root / "cgroup" / "job"
    group.mkdir(parents=True)
    if events is not None:
        (group / "memory.events").write_text(events)
    return root / "proc", root / "cgroup"


def test_the_cgroups_own_count_is_preferred(tmp_path):
    proc, cgroups = machine(tmp_path, "0::/job\n", "max 5\noom 3\noom_kill 2\n", "oom_kill 9\n")
    assert oom_kills(proc, cgroups) == 2


def test_the_machines_count_where_the_cgroup_has_none(tmp_path):
    proc, cgroups = machine(tmp_path, "4:memory:/job\n0::/\n", None, "pgfault 1\noom_kill 9\n")
    assert oom_kills(proc, cgroups) == 9
