"""Archives: what is inside comes out inside the scratch folder, or nothing does and one sentence says why."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from engine.errors import GapscopeError
from engine.intake import archives as archives_module
from engine.intake import open_intake

FILES = {"run/a.jsonl": b'{"a": 1}\n' * 100, "run/sub/b.csv": b"x,y\n1,2\n", "run/\u00fc.txt": b"u"}


def tar_of(files: Mapping[str, bytes] | list[tarfile.TarInfo | tuple[str, bytes]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    entries = list(files.items()) if isinstance(files, Mapping) else files
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))
    return out.getvalue()


def zip_of(files: Mapping[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            packed.writestr(name, data)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in which an input lies; nothing but it and an empty scratch folder may be there in the end."""
    yield tmp_path
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "scratch") == ["given"]
    assert not (tmp_path / "scratch").exists() or not list((tmp_path / "scratch").iterdir())


def contents(place: Path, data: bytes) -> dict[str, bytes]:
    (place / "given").write_bytes(data)
    with open_intake(place / "given", place / "scratch") as intake:
        inside = intake.scratch.resolve()
        assert all(inside in file.path.resolve().parents for file in intake.files)
        return {file.name: file.path.read_bytes() for file in intake.files}


def refusal(place: Path, data: bytes) -> str:
    (place / "given").write_bytes(data)
    with pytest.raises(GapscopeError) as caught:
        open_intake(place / "given", place / "scratch")
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


PACKED = {
    "tar": tar_of(FILES),
    "tar.gz": gzip.compress(tar_of(FILES)),
    "tar.bz2": bz2.compress(tar_of(FILES)),
    "tar.xz": lzma.compress(tar_of(FILES)),
    "tar.zst": zstd(tar_of(FILES)),
    "zip": zip_of(FILES),
}


@pytest.mark.parametrize("kind", PACKED)
def test_archives_are_told_by_content(place: Path, kind: str) -> None:
    assert contents(place, PACKED[kind]) == FILES


@pytest.mark.parametrize("outer", [tar_of, zip_of])
def test_archives_in_archives(place: Path, outer: object) -> None:
    found = contents(place, outer({"day/one.tar.gz": PACKED["tar.gz"], "day/two": zip_of({"c": b"c"})}))  # type: ignore[operator]
    assert found == {**{f"day/one.tar.gz/{name}": data for name, data in FILES.items()}, "day/two/c": b"c"}


def test_archives_far_inside_archives_are_refused(place: Path) -> None:
    data = zip_of({"a": b"a"})
    for _ in range(3):
        data = zip_of({"in": data})
    assert "archives in archives 4 deep, 3 at most" in refusal(place, data)


def test_archives_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "plain").write_bytes(b"p")
    (tmp_path / "in" / "sub" / "runs.tgz").write_bytes(PACKED["tar.gz"])
    with open_intake(tmp_path / "in") as intake:
        assert {file.name for file in intake.files} == {"plain", *(f"sub/runs.tgz/{name}" for name in FILES)}
    assert sorted(p.name for p in (tmp_path / "in").rglob("*")) == ["plain", "runs.tgz", "sub"]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../evil", "outside its own folder"),
        ("a/../../evil", "outside its own folder"),
        ("/etc/evil", "outside its own folder"),
        ("..\\evil", "outside its own folder"),
        ("C:\\evil", "outside its own folder"),
        ("c:/evil", "outside its own folder"),
        ("a\nb", "no printable text"),
        ("x" * 300, "too long for a file"),
        ("x/" * 1000 + "y", "folders 1001 deep"),
    ],
)
def test_names_that_reach_outside(place: Path, pack: object, name: str, words: str) -> None:
    assert words in refusal(place, pack([("good", b"1"), (name, b"2")]))  # type: ignore[operator]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/./b", "a/b")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_meet(place: Path, pack: object, names: tuple[str, str]) -> None:
    assert "twice" in refusal(place, pack([(names[0], b"1"), (names[1], b"2")]))  # type: ignore[operator]


def test_links_and_devices_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    entries = [
        ("a", b"1"),
        special("soft", tarfile.SYMTYPE, str(tmp_path / "target")),
        special("hard", tarfile.LNKTYPE, "a"),
        special("pipe", tarfile.FIFOTYPE),
        special("null", tarfile.CHRTYPE),
        special("folder", tarfile.DIRTYPE),
    ]
    (tmp_path / "links.tar").write_bytes(tar_of(entries))
    soft = zipfile.ZipInfo("soft")
    soft.external_attr = (stat.S_IFLNK | 0o777) << 16
    (tmp_path / "links.zip").write_bytes(zip_of([("a", b"1"), (soft, b"/etc/passwd")]))
    with open_intake(tmp_path / "links.tar") as intake:
        assert [file.name for file in intake.files] == ["a"]
        assert [name for name, _ in intake.left_out] == [f"links.tar/{n}" for n in ("soft", "hard", "pipe", "null")]
        assert intake.left_out[1][1] == "a link to 'a', not unpacked"
    with open_intake(tmp_path / "links.zip") as intake:
        assert [file.name for file in intake.files] == ["a"]
        assert intake.left_out == (("links.zip/soft", "a link, not unpacked"),)


def test_a_file_through_a_link_of_the_archive(place: Path) -> None:
    """A link is not made, so a member 'below' it lies in a folder of that name."""
    found = contents(place, tar_of([special("out", tarfile.SYMTYPE, "/tmp"), ("out/evil", b"1")]))
    assert found == {"out/evil": b"1"}


@pytest.mark.parametrize("share", [0.4, 0.8])
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "tar.zst"])
def test_a_cut_archive_is_refused(place: Path, kind: str, share: float) -> None:
    data = tar_of({f"{n}": os.urandom(5_000) for n in range(100)})
    packer = {
        "tar.gz": gzip.compress,
        "tar.xz": lzma.compress,
        "tar.zst": lambda d: pa.compress(d, "zstd", asbytes=True),
    }
    data = packer[kind](data) if kind in packer else data
    assert "pack the folder again" in refusal(place, data[: int(len(data) * share) + 7])


def test_a_damaged_zip_is_refused(place: Path) -> None:
    data = bytearray(zip_of({"a": os.urandom(5_000)}))
    data[100] ^= 0xFF
    assert "cannot be unpacked" in refusal(place, bytes(data))


def test_an_encrypted_zip_is_refused(place: Path) -> None:
    data = bytearray(zip_of({"a": b"1" * 100}))
    start = data.find(b"PK\x01\x02")
    data[start + 8] |= 1
    data[6] |= 1
    assert "is encrypted: unpack it yourself" in refusal(place, bytes(data))


# -- bombs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives_module, "FREE_BYTES", 1 << 20)


ZEROS = bytes(1 << 24)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    "data",
    [
        zip_of({"zeros": ZEROS}),
        gzip.compress(tar_of({"zeros": ZEROS})),
        zip_of({f"{n}": zip_of({"in": bytes(1 << 22)}) for n in range(8)}),
    ],
    ids=["zip", "tar.gz", "nested"],
)
def test_bombs_stop_early(place: Path, data: bytes) -> None:
    assert "unpacks to more than 200 times its size" in refusal(place, data)


@pytest.mark.usefixtures("tight")
def test_a_zip_whose_members_overlap(place: Path) -> None:
    """Many entries of the directory name the same bytes: the size of the archive says nothing about its content."""
    data = zip_of({"a": bytes(1 << 18)})
    start = data.find(b"PK\x01\x02")
    end = data.find(b"PK\x05\x06")
    entry = bytearray(data[start:end])
    entries = b""
    head = bytearray(data[:start])
    for n in range(100):
        entry[46:47] = bytes([48 + n % 75])
        entries += bytes(entry)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 100, 100, len(entries), len(head), 0)
    message = refusal(place, bytes(head) + entries + tail)
    assert "cannot be unpacked" in message or "more than 200 times" in message


@pytest.mark.usefixtures("tight")
def test_a_sparse_file_of_a_tar(place: Path) -> None:
    info = tarfile.TarInfo("sparse")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"00000000000\0", b"00000000000\0"  # one piece: nothing at 0
    block[483:495] = b"77777777777\0"  # real size: 8 GiB
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    assert "more than 200 times" in refusal(place, bytes(block) + bytes(1024))


def test_many_members(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives_module, "MAX_MEMBERS", 20)
    monkeypatch.setattr(archives_module.Room, "of", classmethod(lambda cls, archive, name: cls(name, 1 << 30, 20)))
    assert "holds more than 20 files" in refusal(place, zip_of({f"{n}": b"" for n in range(21)}))
    folders = tar_of([special(f"d{n}", tarfile.DIRTYPE) for n in range(21)])
    assert "holds more than 20 files" in refusal(place, folders)


def test_a_full_disk_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **options: object) -> object:
        if "scratch" in str(self) and args[:1] == ("xb",):
            raise OSError(28, "No space left on device")
        return opened(self, *args, **options)

    opened = Path.open
    monkeypatch.setattr(Path, "open", full)
    assert "cannot be unpacked: No space left on device. Free some space" in refusal(place, PACKED["zip"])
