from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import BadInput
from weft.validation.runs import Run, Unparsed, read_runs, shipped_runs

HEADER = "id,family,model,gpu,gpus,seq,mfu,sequence_parallel,measured_iter_s,notes,unheard_of"


def read(folder: Path, *lines: str, header: str = HEADER, prefix: str = "") -> tuple[Run | Unparsed, ...]:
    file = folder / "runs.csv"
    file.write_text(prefix + "\n".join([header, *lines]) + "\n", encoding="utf-8")
    return read_runs(str(file))


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("8.0", 8), (" 8 ", 8), ('"1,024"', 1024), ("８", 8), ("~64", 64), ("1e3", 1000)],  # noqa: RUF001
)
def test_counts_in_many_spellings(tmp_path: Path, text: str, value: int) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,{text},2048,0.4,1,1.5,,x")
    assert isinstance(run, Run)
    assert run.gpus == value


@pytest.mark.parametrize("text", ["", "-", "N/A", "nan", "?"])
def test_empty_cells_are_none(tmp_path: Path, text: str) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,{text},{text},{text},{text},{text},")
    assert isinstance(run, Run)
    assert (run.seq, run.mfu, run.sequence_parallel, run.measured_iter_s, run.notes) == (None,) * 4 + ("",)


@pytest.mark.parametrize(("text", "share"), [("0.415", 0.415), ("41.5", 0.415), ("41.5%", 0.415)])
def test_shares_and_percentages(tmp_path: Path, text: str, share: float) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,2048,{text},0,1.5,,")
    assert isinstance(run, Run)
    assert run.mfu == pytest.approx(share)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,f,GPT,A100,eight,2048,,,1.5,,", "gpus = 'eight' is not a number"),
        ("a,f,GPT,A100,8.5,2048,,,1.5,,", "gpus = '8.5' is not a whole number"),
        ("a,f,GPT,A100,0,2048,,,1.5,,", "gpus = '0' is zero"),
        ("a,f,GPT,A100,8,-1,,,1.5,,", "seq = '-1' is not within"),
        ("a,f,GPT,A100,8,2048,,,inf,,", "measured_iter_s = 'inf' is not within"),
        ("a,f,GPT,A100,8,2048,,maybe,1.5,,", "sequence_parallel = 'maybe' is neither 0 nor 1"),
        ("a,f,GPT,,8,2048,,,1.5,,", "gpu is not stated"),
        ("a,f,GPT,A100,8,2048,,,1.5,,,,more", "2 more cells than columns"),
    ],
)
def test_broken_rows_are_kept_with_their_reason(tmp_path: Path, row: str, reason: str) -> None:
    good = "b,f,GPT,A100,8,2048,0.4,1,1.5,,"
    broken, run = read(tmp_path, row, good)
    assert isinstance(broken, Unparsed)
    assert isinstance(run, Run)
    assert broken.name == "a"
    assert broken.family == "f"
    assert reason in broken.reason


def test_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    rows = read(tmp_path, "a,f,GPT,A100,8,,,,1.5,,", "", ",,,,,,,,,,", prefix="\ufeff")
    assert [row.name for row in rows if isinstance(row, Run)] == ["a"]


def test_a_row_without_id_is_named_by_its_line(tmp_path: Path) -> None:
    (run,) = read(tmp_path, ",f,GPT,A100,8,,,,1.5,,")
    assert isinstance(run, Run)
    assert run.name == "line 2"


def test_a_second_run_of_an_id_is_left_out(tmp_path: Path) -> None:
    """Twice the same row counted twice in every mean."""
    first, other, again = read(tmp_path, *(f"{name},f,GPT,A100,8,2048,0.4,1,1.5,," for name in ("a", "b", "a")))
    assert isinstance(first, Run)
    assert isinstance(other, Run)
    assert again == Unparsed(name="a", family="f", reason="another run has its id (line 2)")
    assert all(isinstance(run, Run) for run in read(tmp_path, *[",f,GPT,A100,8,2048,0.4,1,1.5,,"] * 2))


def test_missing_columns_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lacks the columns family, gpus, one of measured_iter_s/"):
        read(tmp_path, header="id,model,gpu")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00id")
    for name in ("absent", "binary", "."):
        with pytest.raises(BadInput, match=r"no such file|cannot be read|not a text file"):
            read_runs(str(tmp_path / name))
    (tmp_path / "empty").write_text("")
    with pytest.raises(BadInput, match="lacks the columns"):
        read_runs(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("text", "value"), [("none", "none"), (" None", "none"), ("", ""), ("n/a", ""), ("full", "full")]
)
def test_no_recomputation_is_something_stated(tmp_path: Path, text: str, value: str) -> None:
    header = HEADER.replace("unheard_of", "recompute")
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,2048,0.4,1,1.5,,{text}", header=header)
    assert isinstance(run, Run)
    assert run.recompute == value


def test_the_runs_that_weft_comes_with_are_whole() -> None:
    runs = shipped_runs()
    assert all(isinstance(run, Run) and run.source and run.source_url for run in runs)
    assert len({run.name for run in runs}) == len(runs)
    page = (Path(__file__).parents[2] / "docs" / "measured-runs.md").read_text(encoding="utf-8")
    families = {run.family for run in runs}
    assert all(f"\n| {family} |" in page for family in families)
    assert f"{len(runs):,} published" in page
