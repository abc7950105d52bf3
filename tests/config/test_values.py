import pytest

from offgen.config import values
from offgen.config.values import Allowance, Shard


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("4GB", 4_000_000_000),
        ("4g", 4 << 30),
        ("2KiB", 2048),
        ("77", 77),
        ("77B", 77),
        (4096, 4096),
    ],
)
def test_sizes_have_units(text, size):
    assert values.size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-4GiB", "4XiB", "4 G i B", "0", 0, True, None, "nan", [1]])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"size"):
        values.size(text)


@pytest.mark.parametrize("text", ["1.5", "x", "", "1e3", True, None, [1], 1.5])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ValueError, match="not a whole number"):
        values.whole(0)(text)


def test_a_whole_number_keeps_its_bounds():
    assert values.whole(0, 5)("5") == 5
    assert values.whole(0)(3.0) == 3
    with pytest.raises(ValueError, match="the least is 1"):
        values.whole(1)("0")
    with pytest.raises(ValueError, match="the most is 5"):
        values.whole(0, 5)("6")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "", None, True, [1.0]])
def test_what_is_no_finite_number_is_refused(text):
    with pytest.raises(ValueError, match="not a number"):
        values.number()(text)


def test_text_from_a_file_loses_its_last_line_end_only(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("two\nlines\n\n")
    assert values.text(f"@{file}") == "two\nlines\n"
    assert values.text("@@user") == "@user"
    assert values.text("@") == "@"
    assert values.text("plain @ text") == "plain @ text"
    with pytest.raises(ValueError, match=r"nope.txt` cannot be read: No such file"):
        values.text(f"@{tmp_path}/nope.txt")
    with pytest.raises(ValueError, match="cannot be read"):
        values.text(f"@{tmp_path}")


def test_lists_come_with_commas_or_as_lists():
    assert values.names("a, b") == values.names(["a", "b"]) == ("a", "b")
    assert values.token_ids("1,2") == values.token_ids([1, 2]) == (1, 2)
    assert values.token_ids(7) == (7,)
    with pytest.raises(ValueError, match="twice"):
        values.names("a,a")
    with pytest.raises(ValueError, match="empty"):
        values.names("a,,b")
    with pytest.raises(ValueError, match="not a whole number"):
        values.token_ids("1,x")
    with pytest.raises(ValueError, match="the least is 0"):
        values.token_ids("-1")


def test_json_objects_only():
    assert values.mapping('{"5": 1.5}') == {"5": 1.5}
    assert values.mapping({"5": 1.5}) == {"5": 1.5}
    with pytest.raises(ValueError, match="not JSON"):
        values.mapping("{5: 1}")
    with pytest.raises(ValueError, match="not a JSON object"):
        values.mapping("[1]")


def test_an_allowance_is_a_count_or_a_share():
    assert values.allowance("0") == Allowance(rows=0)
    assert values.allowance(3) == Allowance(rows=3)
    assert values.allowance("2.5%") == Allowance(percent=2.5)
    assert Allowance(rows=3).covers(3, 10)
    assert not Allowance(rows=3).covers(4, 10)
    assert Allowance(percent=10).covers(1, 10)
    assert not Allowance(percent=10).covers(2, 10)
    assert Allowance(percent=100).covers(10, 10)
    for bad in ("x", "101%", "-1", "%", "1.5"):
        with pytest.raises(ValueError):
            values.allowance(bad)


def test_shards_count_from_zero():
    assert values.shard("0/8") == Shard(0, 8)
    assert str(values.shard("7/8")) == "7/8"
    for bad in ("8/8", "0/0", "1", "a/b", "-1/2", "1/2/3", 3):
        with pytest.raises(ValueError):
            values.shard(bad)


def test_a_slurm_array_names_the_shard(monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "10")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "4")
    assert values.shard("slurm") == Shard(2, 4)
    monkeypatch.setenv("SLURM_ARRAY_TASK_STEP", "2")
    assert values.shard("slurm") == Shard(1, 4)
    monkeypatch.delenv("SLURM_ARRAY_TASK_COUNT")
    with pytest.raises(ValueError, match="SLURM_ARRAY_TASK_COUNT is not set"):
        values.shard("slurm")


def test_a_sparse_slurm_array_is_refused(monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "9")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    with pytest.raises(ValueError, match="shard 8 of 3 does not exist"):
        values.shard("slurm")
