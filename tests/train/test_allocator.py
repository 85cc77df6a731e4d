"""Freed memory stays at hand: a second block of the same size faults no page in."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import ctypes, resource, sys
from train.allocator import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    block = libc.malloc(64 << 20)
    libc.memset(block, 1, 64 << 20)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_a_block_that_was_freed_is_taken_again():
    def faults(word):
        done = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True, check=True, cwd=ROOT)
        kept, count = done.stdout.split()
        return kept == "True", int(count)

    kept, count = faults("keep")
    assert kept and count < 10
    plain, many = faults("plain")
    assert not plain and many > 100  # 5 blocks of 64 MB, in pages of 4 kB or of 2 MB
