"""Search by example: every image compared, by cosine."""

import io
import json
import pathlib
import types
import zipfile

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import image_folders
import plugins
from vit_jax import cli, config
from vit_jax.config import ConfigError, components
from vit_jax.data import decoding
from vit_jax.inference import embedding, search
from vit_jax.pages import html

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures/vit_tiny_token.npz"


def test_the_nearest_by_cosine_and_the_earlier_of_equals(monkeypatch):
    monkeypatch.setattr(search, "ROWS", 2)
    rows = np.float32([[1, 0], [0, 0], [np.nan, 1], [3, 4], [5, 0], [-1, 0]])
    index = search.FeatureIndex.from_features("abcdef", rows)
    found = index.nearest(np.float32([2, 0]), 9)
    assert [one.image for one in found] == ["a", "e", "d", "f"]
    assert [one.similarity for one in found] == pytest.approx([1, 1, 0.6, -1])
    assert index.nearest(np.float32([0, 1]), 1) == [("d", pytest.approx(0.8))]


def test_a_length_counts_for_nothing_however_small_or_large():
    rows = np.float32([[0, 1], [3, 4]]) * np.float32([[1], [1e-30]])
    large = np.float32([[np.inf, 0], [1e30, 0], [0, 0]])
    index = search.FeatureIndex.from_features("abcde", np.concatenate([rows, large]))
    found = index.nearest(np.float32([2, 0]), 9)
    assert found == [("d", pytest.approx(1)), ("b", pytest.approx(0.6)), ("a", pytest.approx(0))]
    assert index.features.dtype == np.float32
    assert index.nearest(np.float32([2e-30, 0]), 9) == found


@pytest.mark.parametrize("name", ["features.npz", "features.parquet"])
def test_a_file_that_is_no_table(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(ConfigError, match="no such file or folder"):
        search.read_index(path)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ConfigError, match="is not a table that vit_jax embed wrote"):
        search.read_index(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"names": np.array(["a"])}, "is not a table"),
        ({"names": np.array(["a"]), "features": np.zeros((2, 3), np.float32)}, "one row"),
        ({"names": np.array(["a"]), "features": np.zeros((1, 2, 3), np.float32)}, "one row"),
        (
            {"names": np.array(["a"]), "features": np.float32([[np.nan]])},
            "has features of no image",
        ),
        ({"names": np.array(["a"]), "features": np.array([[None]])}, "is not a table"),
        ({"names": np.array("a"), "features": np.zeros((1, 3), np.float32)}, "is not a table"),
        ({"names": np.array([["a"]]), "features": np.zeros((1, 3), np.float32)}, "is not a table"),
        ({"names": np.array([], str), "features": np.zeros((0, 3), np.float32)}, "has no images"),
    ],
)
def test_a_table_of_others(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        search.read_index(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "y.npz", **arrays)
    with pytest.raises(ConfigError, match="is compressed"):
        search.read_index(tmp_path / "y.npz")


def test_a_table_in_parquet_has_a_row_for_each_image(tmp_path):
    rows = np.float32([[3, 4, 0], [0, 0, 2]])
    flat = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3)
    pq.write_table(pa.table({"name": ["a", "b"], "features": flat}), tmp_path / "x.parquet")
    found = search.read_index(tmp_path / "x.parquet")
    assert found.names == ("a", "b")
    np.testing.assert_allclose(found.features, [[0.6, 0.8, 0], [0, 0, 1]], rtol=1e-6)


FLOATS = pa.array([[1.0, 2.0]], pa.list_(pa.float32()))
ZEROS = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2**20, np.float32)), 2**20)


@pytest.mark.parametrize(
    "columns",
    [
        {"name": ["a"]},
        {"name": ["a"], "features": [1]},
        {"name": ["a"], "features": ["x"]},
        {"name": ["a"], "features": [{"x": 1}]},
        {"name": ["a"], "features": FLOATS},  # rows of any length
        {"name": [1], "features": FLOATS.cast(pa.list_(pa.float32(), 2))},
        {"name": ["a"], "features": pa.array([[1, None]], pa.list_(pa.float32(), 2))},
        {"name": ["a"], "features": ZEROS},  # which would fill memory
    ],
)
def test_a_table_in_parquet_of_other_columns(columns, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 2**20
    with pytest.raises(ConfigError, match="is not a table that vit_jax embed wrote"):
        search.read_index(tmp_path / "x.parquet")


def test_a_name_of_many_rows_fills_no_memory(tmp_path):
    flat = np.random.default_rng(0).random(200 * 4, np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(flat), 4)
    for size in (100, 2**14):  # of a name that the file holds once
        table = pa.table({"name": ["x" * size] * 200, "features": features})
        pq.write_table(table, tmp_path / f"{size}.parquet", compression="zstd")
        assert (tmp_path / f"{size}.parquet").stat().st_size < 2**15
    assert search.read_index(tmp_path / "100.parquet").names == ("x" * 100,) * 200
    with pytest.raises(ConfigError, match="is not a table that vit_jax embed wrote"):
        search.read_index(tmp_path / "16384.parquet")


def test_a_table_that_declares_more_than_it_holds(tmp_path):
    """Nothing of that size is allocated."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        header = io.BytesIO()
        large = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 3)}
        np.lib.format.write_array_header_1_0(header, large)
        archive.writestr("features.npy", header.getvalue())
    with pytest.raises(ConfigError, match="is not a table that vit_jax embed wrote"):
        search.read_index(path)


def test_pictures_are_below_the_folder_that_was_named(tmp_path, caplog, monkeypatch):
    (tmp_path / "photos").mkdir()
    for name in ("photos/a.png", "secret.png"):
        cv2.imwrite(str(tmp_path / name), np.zeros((4, 4, 3), np.uint8))
    loaded = types.SimpleNamespace(config=config.Config())
    names = ("a.png", "../secret.png", str(tmp_path / "secret.png"))
    document = search.create_document(
        loaded,
        tmp_path / "photos/a.png",
        tmp_path / "photos",
        [search.SimilarImage(n, 1.0) for n in names],
    )
    assert html.page(document).count("data:image/png") == 2
    (section,) = document.sections
    gallery, *unshown = section.blocks
    assert [one.caption for one in gallery.samples] == ["The query", "a.png, 1.000"]
    assert len(unshown) == 2
    # The names that `embed` writes of the images of a dataset are whole.
    monkeypatch.chdir(tmp_path)
    whole = [search.SimilarImage(str(tmp_path / "photos/a.png"), 1.0)]
    document = search.create_document(
        loaded, pathlib.Path("photos/a.png"), pathlib.Path("photos"), whole
    )
    assert html.page(document).count("data:image/png") == 2
    assert not caplog.messages
    search.create_document(
        loaded, tmp_path / "photos/a.png", tmp_path, [search.SimilarImage("a.png", 1.0)]
    )
    (said,) = caplog.messages
    assert said == (
        f"{tmp_path}: has none of the images found, such as a.png; --images is the folder that was "
        "embedded"
    )


@pytest.mark.slow
def test_a_folder_and_its_table_give_the_same(tmp_path, capsys):
    photos = image_folders.draw(tmp_path / "photos", *(f"{number}.png" for number in range(5)))
    given = [f"--checkpoint={FIXTURE}", f"--query={photos}/3.png", "--top=2"]
    assert cli.main(["search", *given, f"--index={photos}", "--json",
                     f"--output={tmp_path}/found.html"]) == 0  # fmt: skip
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0] == {"image": "3.png", "similarity": pytest.approx(1, abs=1e-6)}
    assert found[1]["similarity"] < found[0]["similarity"]
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/png") == 3
    for suffix in ("npz", "parquet"):
        table = tmp_path / f"table.{suffix}"
        embed = ["embed", f"--checkpoint={FIXTURE}", f"{photos}", f"--output={table}"]
        assert cli.main(embed) == 0
        capsys.readouterr()
        page = [f"--images={photos}", f"--output={tmp_path}/again.html"]
        assert cli.main(["search", *given, f"--index={table}", *page]) == 0
        assert f"{tmp_path}/again.html: a page with pictures" in capsys.readouterr().out
        assert cli.main(["search", *given, f"--index={table}", "--json"]) == 0
        again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["image"] for one in again] == [one["image"] for one in found]
    assert cli.main(["search", *given, f"--index={table}", f"--output={tmp_path}/x.html"]) == 2
    assert "name their folder with --images=FOLDER" in capsys.readouterr().err
    (tmp_path / "text.png").write_text("none")
    bad = [f"--checkpoint={FIXTURE}", f"--index={table}", f"--query={tmp_path}/text.png"]
    assert cli.main(["search", *bad]) == 2


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """A table of two images and a query; the model gives the first one's features."""
    asked = []
    np.savez(tmp_path / "x.npz", names=np.array(["a", "b"]), features=np.eye(2, dtype=np.float32))
    cv2.imwrite(str(tmp_path / "q.png"), np.zeros((3, 3, 3), np.uint8))

    def load(reference, overrides, step):
        asked.append((reference, overrides, step))
        return types.SimpleNamespace(embed=lambda image: np.float32([[1, 0]]))

    monkeypatch.setattr(search.loading, "load", load)
    monkeypatch.setattr(search, "create_document", lambda *given: given)
    monkeypatch.setattr(search.html, "page", lambda given: f"{given[1].name} {given[2].name}")
    return tmp_path, asked


def test_a_table_of_other_weights_is_refused(searched, monkeypatch):
    """Whatever they are called: features of as many numbers mean something else."""
    root, _ = searched
    features = np.eye(2, dtype=np.float32)
    np.savez(root / "x.npz", names=np.array(["a", "b"]), features=features, weights=np.array("1"))
    facts = {"classes": (), "weights": "1"}
    with embedding.create_file(root / "x.parquet", 2, (2,), facts) as write:
        write(features, ["a", "b"], np.zeros(2, np.int32))
    for table in (root / "x.npz", root / "x.parquet"):
        monkeypatch.setattr(search.embedding, "digest_weights", lambda opened: "1")
        assert search.search("run", table, root / "q.png", top=1)[0].image == "a"
        monkeypatch.setattr(search.embedding, "digest_weights", lambda opened: "2")
        with pytest.raises(ConfigError, match="has features of other weights than run; search"):
            search.search("run", table, root / "q.png")


CROPPED = {"data": {"image_size": (32, 32), "eval_crop": "central", "resize_to": 36}}
COSINE = {"model": {"architecture": "cosine_vit", "scale": 5.0}}


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize(
    ("fact", "written", "same", "other", "line"),
    [
        # The same parameters give other features with another form of GELU ...
        ("model", {"model": {"gelu": "tanh"}}, {"dropout": 0.1}, {"gelu": "erf"},
         "model with other options, such as model.gelu; search"),
        # ... or another argument of a plug-in.
        ("model", COSINE, {"dropout": 0.1}, {"scale": 6.0}, "model with other options, such as"),
        ("views", CROPPED, {"flip": False}, {"resize_to": 40},
         "were resized, cropped or normalized otherwise; search"),
    ],
)  # fmt: skip
def test_a_table_of_other_options_is_refused(
    kind, fact, written, same, other, line, searched, monkeypatch
):
    digests = {"model": embedding.digest_model, "views": embedding.digest_views}
    ((section, options),) = written.items()

    def changed(changes):
        return config.build({section: options | changes})

    with plugins.forgotten() as patch:
        patch.syspath_prepend(str(plugins.PROJECT))
        components.load_plugins(["own_attention"])
        root, _ = searched
        table = root / f"{fact}.{kind}"
        facts = {"classes": (), fact: digests[fact](getattr(changed({}), section))}
        with embedding.create_file(table, 2, (2,), facts) as write:
            write(np.eye(2, dtype=np.float32), ["a", "b"], np.zeros(2, np.int32))

        def find(changes):
            opened = types.SimpleNamespace(
                embed=lambda image: np.float32([[1, 0]]), config=changed(changes)
            )
            monkeypatch.setattr(search.loading, "load", lambda *given: opened)
            return search.search("run", table, root / "q.png", top=1)

        assert find(same)[0].image == "a"
        with pytest.raises(ConfigError, match=line):
            find(other)


def test_a_query_that_is_no_image_is_named(searched, monkeypatch):
    root, _ = searched

    def embed(image):
        raise decoding.BadImage("images: is not a JPEG")

    loaded = types.SimpleNamespace(embed=embed)
    monkeypatch.setattr(search.loading, "load", lambda *given: loaded)
    with pytest.raises(ConfigError, match=r"^--query=.*/q\.png: is not a JPEG$"):
        search.search("run", root / "x.npz", root / "q.png")


def test_the_model_is_asked_once_query_and_table_are_read(searched):
    root, asked = searched
    found = search.search("run", root / "x.npz", root / "q.png", {"seed": 1}, step=7, top=1)
    assert found == [("a", 1.0)]
    assert asked == [("run", {"seed": 1}, 7)]
    page = root / "page.html"
    search.search("run", root / "x.npz", root / "q.png", images=root, output=page)
    assert page.read_text() == f"q.png {root.name}"


def test_what_cannot_be_searched_is_one_line_before_a_model_is_loaded(searched):
    root, asked = searched
    table, query, page = root / "x.npz", root / "q.png", root / "p.html"
    for line, index, photo, more in (
        ("--index=.*gone: no such file or folder", root / "gone", query, {}),
        ("--query=.*gone.png: No such file", table, root / "gone.png", {}),
        ("--output=p.html: shows pictures; name their folder", table, query, {"output": "p.html"}),
        ("--index=.*is a web address", "https://b/x.npz", query, {}),
        ("--output=.*must be on a disk", root, query, {"output": "gs://b/p.html"}),
        ("--output=p.txt: must end in .html", root, query, {"output": "p.txt"}),
        ("--output=.*p.html: no such folder", root, query, {"output": root / "no/p.html"}),
        ("--images=.*finds the pictures of a table", table, query, {"images": root}),
        ("--images=.*finds the pictures", root, query, {"images": root, "output": page}),
        ("--images=gone: no such folder", table, query, {"images": "gone", "output": page}),
        ("--top=0: must be a whole number, at least 1", table, query, {"top": 0}),
    ):
        with pytest.raises(ConfigError, match=line):
            search.search("run", index, photo, **more)
    assert asked == []
