"""Memory and processors as containers limit them, from made-up /proc and cgroup trees; and the choice of a backend."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from offgen.backends import open_backend
from offgen.backends.host import available_cpus, available_memory_bytes
from offgen.errors import UsageError

MIB = 1 << 20


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": root / "proc", "cgroup_root": root / "cgroup"}


@pytest.fixture
def machine(tmp_path):
    return lambda files: lay(tmp_path, {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:  1048576 kB\n", **files})


def test_memory_of_a_machine_without_limits(machine):
    assert available_memory_bytes(**machine({})) == 1024 * MIB


@pytest.mark.parametrize("path", ["/", "/job"])
def test_memory_of_cgroup_v2_counts_page_cache_as_room(machine, path):
    places = machine(
        {
            "proc/self/cgroup": f"0::{path}\n",
            f"cgroup{path}/memory.max": f"{512 * MIB}\n",
            f"cgroup{path}/memory.current": f"{200 * MIB}\n",
            f"cgroup{path}/memory.stat": f"anon 5\ninactive_file {50 * MIB}\n",
        }
    )
    assert available_memory_bytes(**places) == 362 * MIB


def test_the_tightest_parent_counts(machine):
    places = machine(
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "cgroup/outer/inner/memory.max": "max\n",
            "cgroup/outer/inner/memory.current": "0\n",
            "cgroup/outer/memory.max": f"{300 * MIB}\n",
            "cgroup/outer/memory.current": f"{100 * MIB}\n",
            "cgroup/outer/inner/cpu.max": "max 100000\n",
            "cgroup/outer/cpu.max": "100000 100000\n",
        }
    )
    assert available_memory_bytes(**places) == 200 * MIB
    assert available_cpus(**places) == 1


def test_memory_and_cpus_of_cgroup_v1(machine):
    places = machine(
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "cgroup/memory/memory.limit_in_bytes": f"{400 * MIB}",
            "cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}",
            "cgroup/memory/memory.stat": f"total_inactive_file {10 * MIB}\n",
            "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert available_memory_bytes(**places) == 310 * MIB
    assert available_cpus(**places) == 1


def test_no_quota_leaves_the_affinity(machine):
    places = machine({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000\n"})
    assert available_cpus(**places) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "options",
    [
        {"device": "tpu"},
        {"device": "cpu", "dtype": "int3"},
        {"device": "cpu", "quantization": "fp8"},
        {"device": "cpu", "kv_cache_dtype": "fp8"},
        {"device": "cpu", "attention_backend": "triton", "dtype": "bfloat16"},
    ],
)
def test_what_a_device_cannot_do_is_refused(options):
    with pytest.raises(UsageError):
        open_backend(options.pop("device"), **options)


def test_choosing_a_backend_loads_no_compiler_for_others():
    code = "import sys; import offgen.backends; assert 'numba' not in sys.modules and 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
