"""A model's name to a folder: local paths need no network and say what is missing; hub ids fail clearly offline."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from offgen.checkpoints import resolve
from offgen.checkpoints.cache import cache_folder
from offgen.errors import UsageError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("touched the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_local_folder_in_every_spelling(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    for name in (str(folder), f"{folder}/", "tiny", "./tiny", "tiny/", "../models/tiny", str(link)):
        found = resolve(name)
        assert found.folder.samefile(folder) and found.folder.is_absolute()
        assert found.name == name and found.revision is None


def test_local_folder_of_symlinked_files_like_a_snapshot(folder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert resolve(str(snapshot)).fingerprint() == resolve(str(folder)).fingerprint()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_file_is_named_with_its_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError) as caught:
        resolve(str(folder))
    assert str(folder / name) in caught.value.message and caught.value.hint


def test_tokenizer_may_come_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    other = tmp_path / "tok"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    found = resolve(str(folder), tokenizer=str(other))
    assert found.folder == folder and found.tokenizer_folder == other


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "nowhere/", "~/nowhere-at-all", "x.gguf", "a/b/c"])
def test_missing_path_is_not_mistaken_for_a_hub_id(name: str) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        resolve(name)


def test_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hi")
    with pytest.raises(UsageError, match=r"not a \.gguf file"):
        resolve(str(path))


def test_adapter_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="adapter"):
        resolve(str(tmp_path))


def test_revision_of_a_local_model_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="--revision"):
        resolve(str(folder), revision="main")


@pytest.mark.parametrize("name", ["someone/nothing", "gpt2-not-here"])
def test_hub_id_offline_is_a_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        resolve(name)
    assert name in caught.value.message and "HF_HUB_OFFLINE" in caught.value.message


def test_hub_id_is_taken_from_the_cache_offline(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "models--someone--tiny"
    (repo / "snapshots" / commit).parent.mkdir(parents=True)
    (repo / "snapshots" / commit).symlink_to(folder)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = resolve("someone/tiny")
    assert found.revision == commit and (found.folder / "config.json").is_file()
    assert resolve("someone/tiny", revision=commit).folder == found.folder


def test_download_asks_for_no_pickle_and_no_code(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked: dict[str, Any] = {}

    def record(repo_id: str, **options: Any) -> str:
        asked.update(options)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", record)
    resolve("someone/tiny", revision="v1")
    assert asked["revision"] == "v1"
    assert not any(pattern.endswith(("bin", "pt", "py", "*", "pth")) for pattern in asked["allow_patterns"])


def test_fingerprint_tells_what_changed_and_only_that(folder: Path, tmp_path: Path) -> None:
    first = resolve(str(folder)).fingerprint()
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert resolve(str(copy)).fingerprint() == first
    (copy / "README.md").write_text("unrelated")
    assert resolve(str(copy)).fingerprint() == first
    for name, part in (("config.json", "config"), ("tokenizer.json", "tokenizer"), ("model.safetensors", "weights")):
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(before[:-1] + b" ")
        changed = resolve(str(copy)).fingerprint()
        assert {key for key in first if changed[key] != first[key]} == {part}
        (copy / name).write_bytes(before)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OFFGEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "offgen"
