from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.errors import UsageError
from offgen.readers import Selection, open_input
from offgen.readers.hf_dataset import hub_name

datasets = pytest.importorskip("datasets")


def rows(num_rows: int, split: str = "train") -> Any:
    data = {
        "prompt": [f"{split} {i}" for i in range(num_rows)],
        "messages": [[{"role": "user", "content": str(i)}] for i in range(num_rows)],
        "label": [i % 2 for i in range(num_rows)],
    }
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    return datasets.Dataset.from_dict(data, features=features, split=split)


def test_a_saved_dataset_is_read_in_its_own_order(tmp_path: Path, read: Any) -> None:
    rows(3000).save_to_disk(tmp_path / "d", num_shards=12)
    source = open_input([str(tmp_path / "d")])
    assert source.num_rows == 3000
    got = read(source, ["prompt", "messages"])
    assert [v["prompt"] for v in got.values] == [f"train {i}" for i in range(3000)]
    assert got.values[5]["messages"] == [{"role": "user", "content": "5"}]
    assert got.table.schema.field("label").type == pa.int64()


def test_a_dataset_dict_needs_its_split(tmp_path: Path, read: Any) -> None:
    datasets.DatasetDict({"train": rows(5), "test": rows(3, "test")}).save_to_disk(tmp_path / "d")
    path = str(tmp_path / "d")
    assert read(path, ["prompt"], split="test").values[0] == {"prompt": "test 0"}
    assert len(read(path, split="train").rows) == 5
    with pytest.raises(UsageError, match=r"several splits: train, test"):
        open_input([path])
    with pytest.raises(UsageError, match="no split `validation`"):
        open_input([path], split="validation")
    datasets.DatasetDict({"only": rows(2)}).save_to_disk(tmp_path / "one")
    assert len(read(str(tmp_path / "one")).rows) == 2


def test_a_missing_file_of_a_saved_dataset_is_named(tmp_path: Path) -> None:
    rows(100).save_to_disk(tmp_path / "d", num_shards=2)
    next((tmp_path / "d").glob("data-00001*")).unlink()
    with pytest.raises(UsageError, match="data-00001"):
        open_input([str(tmp_path / "d")])


def test_saved_datasets_are_read_without_the_library(tmp_path: Path) -> None:
    rows(3).save_to_disk(tmp_path / "d")
    code = f"import sys; from offgen.readers import open_input; open_input([{str(tmp_path / 'd')!r}]); " + (
        "sys.exit('datasets' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plain_dataset_folder_with_a_split_goes_through_the_library(
    tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"prompt": [f"t{i}" for i in range(2500)]}), tmp_path / "data" / "train-00000.parquet")
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "data" / "test-00000.parquet")
    got = read(str(tmp_path), ["prompt"], split="train", selection=Selection(skip=1020, limit=10))
    assert [v["prompt"] for v in got.values] == [f"t{i}" for i in range(1020, 1030)]
    source = open_input([str(tmp_path)], split="train")
    assert source.count_rows() == 2500
    json.dumps(source.fingerprint())


def test_the_hub_is_asked_through_the_library(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(path: str, name: str | None = None, **options: Any) -> Any:
        asked.append((path, name, options))
        if name == "wrong":
            raise ValueError("BuilderConfig 'wrong' not found. Available: ['main']")
        if path == "gone/gone":
            raise ConnectionError("no network")
        return datasets.IterableDatasetDict({s: rows(3000, s).to_iterable_dataset() for s in ("train", "test")})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    source = open_input(["hf://datasets/org/name@v1"], subset="main", split="test")
    assert asked == [("org/name", "main", {"revision": "v1", "streaming": True})]
    assert read(source, ["prompt"]).values[2999] == {"prompt": "test 2999"}
    assert source.schema.names == ["prompt", "messages", "label"]
    for path, options, says in [
        ("hf://datasets/org/name", {}, "several splits"),
        ("hf://datasets/org/name", {"subset": "wrong"}, "Available"),
        ("hf://datasets/gone/gone", {}, "no network"),
    ]:
        with pytest.raises(UsageError, match=says):
            open_input([path], **options)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://datasets/org/name", ("org/name", None)),
        ("hf://datasets/org/name/", ("org/name", None)),
        ("hf://datasets/squad", ("squad", None)),
        ("hf://datasets/org/name@abc", ("org/name", "abc")),
        ("hf://datasets/org/name/data/x.parquet", None),
        ("org/name", None),
    ],
)
def test_names_on_the_hub(path: str, expected: Any) -> None:
    assert hub_name(path) == expected


def test_split_and_subset_of_a_file_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="--split and --subset"):
        open_input([str(tmp_path / "a.jsonl")], split="train")
