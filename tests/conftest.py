"""What every test finds: eight virtual CPU devices, full float32 products, a compile cache, fixed seeds, no network.

The environment is set before jax is imported anywhere, so nothing here imports jax at the top.
"""

import gc
import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

if "jax" in sys.modules:
    raise pytest.UsageError("jax was imported before tests/conftest.py could set its devices")

os.environ["JAX_PLATFORMS"] = "cpu"
# One thread a process: several test processes share the cores. Tiny models spend their time in the compiler, so the
# generated code is left unoptimised; products still go through the optimised library routines.
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_backend_optimization_level=0",
)
os.environ["XLA_FLAGS"] = " ".join([*XLA_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
os.environ["JAX_ENABLE_X64"] = "0"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

# A second run finds its programs compiled. Two processes may meet in one entry while it is written: the reader then
# warns (pyproject.toml silences that) and compiles for itself. jax's lock would cost a scan of the folder each write.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax" / f"py3{sys.version_info.minor}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Offline, here and in child processes: hub clients are told, and proxies point at a closed port on this machine.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")
for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ[name] = "http://127.0.0.1:9"
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = "localhost,127.0.0.1,::1"

# Started in the background of a script, a process is deaf to Ctrl-C, and so would be the children that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# tests/parity compares with the reference library, which `make parity` alone installs.
collect_ignore = [] if importlib.util.find_spec("torch") else ["parity"]
# tests/soak takes gigabytes and minutes: `make soak`.
collect_ignore += [] if os.environ.get("ONEBLOCK_SOAK") else ["soak"]


def pytest_configure(config):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "oneblock",
        deadline=None,  # the first example compiles
        derandomize=True,
        max_examples=25,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("oneblock")


def _is_local(address) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = str(address[0])
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def offline():
    """Connecting to, or looking up, anything but this machine raises."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def refuse(address):
        if not _is_local(address):
            raise OSError(f"tests run offline: {address!r} was asked for")

    def guarded_connect(self, address):
        refuse(address)
        return connect(self, address)

    def guarded_connect_ex(self, address):
        refuse(address)
        return connect_ex(self, address)

    def guarded_getaddrinfo(host, *args, **kwargs):
        if host is not None:
            refuse((host.decode() if isinstance(host, bytes) else host, 0))
        return getaddrinfo(host, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    yield
    patch.undo()


# A compiled program takes about four memory maps, and the kernel grants a process 65,530 (vm.max_map_count). A test
# process that lives for thousands of tests would use them up, and XLA then crashes while it compiles.
MANY_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def bounded_maps():
    """After a module that leaves very many memory maps, compiled programs are dropped: the cache on disk keeps them."""
    yield
    jax = sys.modules.get("jax")
    maps = Path("/proc/self/maps")
    if jax and maps.exists() and len(maps.read_bytes().splitlines()) > MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def seed(request) -> int:
    """A number of this test's own: the same in every run, another in every test and case."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed):
    """A NumPy generator from `seed`."""
    import numpy

    return numpy.random.default_rng(seed)


@pytest.fixture
def key(seed):
    """A jax key from `seed`."""
    import jax

    return jax.random.key(seed)
