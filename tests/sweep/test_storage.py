"""Storage: the same promises on a folder and on a bucket, here of an S3 server on this machine."""

import errno
import os
import stat

import pytest

from sweep.storage import Folder, StoreError, open_storage


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path):
    if request.param == "folder":
        return open_storage(tmp_path / "deep" / "folder")
    return open_storage(request.getfixturevalue("s3")())


def test_nothing_is_there_at_first(storage):
    assert storage.read("a") is None and storage.names() == [] and storage.names("b") == []
    storage.delete("a")


def test_what_is_written_is_read(storage):
    storage.write("a/b.bin", b"\x00one")
    storage.write("a/b.bin", b"two")
    assert storage.read("a/b.bin") == b"two"
    assert storage.names() == ["a"] and storage.names("a") == ["b.bin"]


def test_append_adds_to_the_end(storage):
    storage.append("a/b.txt", b"one\n")
    storage.append("a/b.txt", b"two\n")
    assert storage.read("a/b.txt") == b"one\ntwo\n"


def test_only_one_creates(storage):
    assert storage.create("a/lock", b"mine")
    assert not storage.create("a/lock", b"yours")
    assert storage.read("a/lock") == b"mine"


def test_delete_takes_files_and_whole_folders(storage):
    for name in ("a/b", "a/c/d", "e"):
        storage.write(name, b"x")
    storage.delete("e")
    storage.delete("a")
    assert storage.names() == [] and storage.read("a/c/d") is None


def test_below_is_the_same_place(storage):
    storage.below("a").write("b", b"x")
    assert storage.read("a/b") == b"x"
    assert storage.below("a").below("c").uri == storage.below("a/c").uri


def test_a_uri_finds_it_again_from_elsewhere(storage):
    storage.below("a").write("b", b"x")
    assert open_storage(storage.below("a").uri).read("b") == b"x"


def test_what_people_open_lies_on_this_machine(s3, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("results").below("a").local == tmp_path / "results" / "a"
    assert open_storage(f"file://{tmp_path}/results").local == tmp_path / "results"
    assert open_storage(s3()).below("a").local == tmp_path / "sweep-results" / "a"


@pytest.mark.parametrize("where", ["s3:/bucket/folder", "s3://", "gs:///", "ftp://host/folder", "hdfs://a/b"])
def test_an_unknown_kind_of_place(where):
    with pytest.raises(StoreError, match=f"^storage {where}: choose a folder, s3://"):
        open_storage(where)


def test_a_bucket_that_is_not_there_is_one_line(s3):
    place, _, options = s3().partition("?")
    storage = open_storage(f"{place.replace('bucket-', 'no-bucket-')}?{options}")
    with pytest.raises(StoreError) as caught:
        storage.write("a/b", b"x")
    assert "\n" not in str(caught.value) and "/deep/folder/a/b cannot be written: " in str(caught.value)
    assert "endpoint" not in str(caught.value).partition(" cannot be ")[0]


# A folder


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    storage = Folder(tmp_path)
    storage.write("a", b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StoreError, match=f"{tmp_path}/.*a.* cannot be written: No space left on device"):
            storage.write("a", b"new")
    assert storage.read("a") == b"old" and storage.names() == ["a"], "no debris"


def test_faults_of_a_folder_name_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    storage = Folder(tmp_path / "file")
    for use in (lambda: storage.write("a", b""), lambda: storage.append("a", b""), lambda: storage.read("a")):
        with pytest.raises(StoreError, match=rf"{tmp_path}/file\S* cannot be (written|read): "):
            use()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StoreError, match="cannot be written: Permission denied"):
        Folder(tmp_path / "results").write("a", b"")
