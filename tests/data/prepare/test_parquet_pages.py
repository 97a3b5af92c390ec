"""Images of Parquet files by their pages: equal to those that Arrow reads, damage in one line."""

import itertools
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import error_line
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import image_listing, parquet, parquet_headers, parquet_pages
from vit_jax.data.source import DataError

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
CODECS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")


def table(kind="struct", *, nulls=False, repeated=False, rows=99):
    rng = np.random.default_rng(rows)
    images = [b"\xff\xd8" + rng.bytes(int(rng.integers(1, 900))) for _ in range(rows)]
    images = [images[k % 7] for k in range(rows)] if repeated else images
    images = [None if nulls and rng.random() < 0.2 else data for data in images]
    if kind == "struct":
        values = [{"bytes": data, "path": f"{k}.jpg"} for k, data in enumerate(images)]
        values = [None if nulls and rng.random() < 0.2 else value for value in values]
        column = pa.array(values, IMAGE)
    else:
        column = pa.array(images, kind)
    return pa.table(
        {"image": column, "label": [k % 5 - (nulls and k % 9 == 0) for k in range(rows)]}
    )


def write(path, found, **form):
    form = {"row_group_size": 60, "write_batch_size": 16, "data_page_size": 4096, **form}
    pyarrow.parquet.write_table(found, path, **form)
    return path


def by_pages(path, label=None):
    listing = image_listing.scan_tables([path], "parquet", label, "k")
    read = parquet_pages.Reader(label)
    return [(listing.path(at), read(listing[at])) for at in range(len(listing))]


def by_arrow(path, label=None):
    rows = filter(None, parquet.rows(path, label))
    return [(name.removesuffix(".jpg"), data) for name, data in rows]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_images_are_those_that_arrow_reads(tmp_path, codec, version):
    """Every form without compression; the other codecs unpack pages of one form."""
    every = codec == "none"
    forms = itertools.product(
        ("struct", pa.binary(), pa.large_binary()) if every else ("struct",),
        (False, True) if every else (True,),
        (False, True),
        (False, True),
    )
    for kind, nulls, repeated, dictionary in forms:
        path = write(
            tmp_path / "train.parquet",
            table(kind, nulls=nulls, repeated=repeated),
            compression=codec,
            data_page_version=version,
            use_dictionary=dictionary,
            write_statistics=repeated,  # or the pages say which images are missing
        )
        expected = by_arrow(path)
        assert by_pages(path) == expected
        assert (len(expected) < 99) == nulls


@pytest.mark.parametrize(
    "form",
    [
        {"row_group_size": 1000, "data_page_size": 2**20},  # a page of all rows
        {"use_content_defined_chunking": True, "write_page_index": True},  # as `datasets` does
        {"dictionary_pagesize_limit": 5000},  # the first images in a dictionary, others plain
        {"row_group_size": 1},
        {"write_page_checksum": True, "version": "1.0"},
    ],
    ids=str,
)
def test_so_are_those_of_other_forms(tmp_path, form):
    path = write(tmp_path / "test-0.parquet", table(nulls=True), **form)
    assert by_pages(path) == by_arrow(path)


def test_a_column_of_labels_can_be_named(tmp_path):
    found = table().append_column("fine", pa.array([f"c{k % 3}" for k in range(99)]))
    path = write(tmp_path / "train.parquet", found)
    with pytest.raises(DataError, match="labels: label, fine; name one: data.labels=COLUMN"):
        by_pages(path)
    assert by_pages(path, "fine") == by_arrow(path, "fine")


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_what_is_not_read_one_by_one_is_said_at_once(tmp_path, encoding):
    path = tmp_path / "train.parquet"
    form = {"use_dictionary": False, "column_encoding": {"image": encoding, "label": "PLAIN"}}
    write(path, table(pa.binary()), **form)
    assert error_line(DataError, by_pages, path) == (
        f"{path}: has images in encoding {encoding}, which is not read one by one; copy its images "
        f"out: vit_jax prepare NAME --from={path}"
    )
    assert len(by_arrow(path)) == 99


def test_lists_of_images_and_too_large_pages_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "train.parquet", table(), data_page_size=2**20, use_dictionary=False)
    monkeypatch.setattr(parquet_pages, "LARGEST", 2**14)
    with pytest.raises(DataError, match=r"has a page of [1-9].,... bytes; copy its images out"):
        by_pages(path)
    monkeypatch.undo()
    monkeypatch.setattr(parquet_pages, "MOST_ROWS", 9)
    write(path, pa.table({"image": [b"x"] * 20_000, "label": [1] * 20_000}), row_group_size=2**20)
    with pytest.raises(DataError, match="says that it has 20,000 rows, of at most "):
        by_pages(path)
    deep = pa.struct({"bytes": pa.struct({"bytes": pa.binary()})})
    images = pa.array([{"bytes": {"bytes": b"x"}}], deep)
    write(path, pa.table({"image": images, "label": [1]}))
    with pytest.raises(DataError, match="column image: must be bytes, or a struct of bytes"):
        by_pages(path)


def test_many_threads_and_few_kept_pages_read_the_same(tmp_path, monkeypatch):
    path = write(tmp_path / "train.parquet", table(), use_dictionary=False)
    expected = by_arrow(path)
    listing = image_listing.scan_tables([path], "parquet", None, "k")
    monkeypatch.setattr(parquet_pages, "KEPT", 20_000)
    read = pickle.loads(pickle.dumps(parquet_pages.Reader()))
    order = np.random.default_rng(0).integers(0, len(listing), 500).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: read(listing[at]), order))
    assert found == [expected[at][1] for at in order]
    assert 0 < read._size <= 20_000
    assert read._size == sum(map(parquet_pages._weight, read._kept.values()))


def test_the_latest_pages_are_kept(tmp_path, monkeypatch):
    path = write(tmp_path / "train.parquet", table(rows=60), use_dictionary=False)
    listing = image_listing.scan_tables([path], "parquet", None, "k")
    pages = {listing[at].offset: listing[at] for at in reversed(range(len(listing)))}
    first, second, third = (pages[place] for place in sorted(pages)[:3])
    unpacked = []
    unpack = parquet_pages._unpack
    monkeypatch.setattr(parquet_pages, "_unpack", lambda *a: unpacked.append(a) or unpack(*a))
    read = parquet_pages.Reader()
    kept = [
        parquet_pages._weight(read.values(one.container, one.offset)) for one in (first, second)
    ]

    def reads(*wanted):
        unpacked.clear()
        for found in wanted:
            read(found)
        return len(unpacked)

    assert reads(first, second) == 0
    monkeypatch.setattr(parquet_pages, "KEPT", sum(kept))
    assert (reads(third), reads(third, third), reads(first)) == (1, 0, 1)
    monkeypatch.setattr(parquet_pages, "KEPT", 0)
    assert (reads(second), reads(second), reads(first, second)) == (1, 0, 2)


def test_what_a_page_costs_is_said_where_it_is_large(tmp_path, monkeypatch, caplog):
    path = write(tmp_path / "train.parquet", table(rows=60), use_dictionary=False)
    caplog.set_level("INFO")
    image_listing.scan_tables([path], "parquet", None, "data.root=x")
    assert not caplog.messages
    monkeypatch.setattr(image_listing, "LARGE", 1000)
    listing = image_listing.scan_tables([path], "parquet", None, "data.root=x")
    pages = {found.offset for found in listing}
    (line,) = caplog.messages
    assert f"data.root=x: an image is read with the {60 // len(pages)} others of its page" in line


def test_damage_is_an_image_that_cannot_be_used_and_change_an_error(tmp_path):
    path = write(tmp_path / "train.parquet", table(), compression="zstd", use_dictionary=False)
    listing = image_listing.scan_tables([path], "parquet", None, "k")
    whole = path.read_bytes()
    page = listing[0].offset
    body = parquet_headers.parse_page(whole[page:], page).body
    path.write_bytes(whole[:body] + bytes(99) + whole[body + 99 :])
    read = parquet_pages.Reader()
    with pytest.raises(BadImage, match="is in a damaged page: "):
        read(listing[0])
    assert read(listing[90])
    with pytest.raises(DataError, match="changed since it was listed, in "):
        read(listing[0]._replace(offset=listing[90].offset, size=999))
    beyond = len(read.values(str(path), listing[90].offset).spans)
    with pytest.raises(DataError, match="changed since it was listed, in "):
        read(listing[90]._replace(size=beyond))
    for place in (0, len(whole) - 9, listing[90].offset + 7):
        with pytest.raises((DataError, BadImage)):
            read(listing[0]._replace(offset=place))
    path.write_bytes(whole[: page + 60])
    with pytest.raises(DataError, match="is damaged, or no Parquet file"):
        parquet_pages.Reader()(listing[0])


def encoded(runs, width):
    """Numbers as Parquet stores them: tuples in groups of eight, (value, count) as one run."""
    data = b""
    for run in runs:
        if isinstance(run, list):
            bits = sum(value << width * at for at, value in enumerate(run))
            head, body = len(run) // 8 << 1 | 1, bits.to_bytes(len(run) * width // 8, "little")
        else:
            head, body = run[1] << 1, run[0].to_bytes(-(-width // 8), "little")
        while head > 127:
            data, head = data + bytes([head & 127 | 128]), head >> 7
        data += bytes([head]) + body
    return memoryview(data)


@pytest.mark.parametrize("width", [0, 1, 2, 3, 8, 11, 20, 32])
def test_runs_and_groups_of_numbers(width):
    rng, most = np.random.default_rng(width), 2**width
    group = rng.integers(0, most, 24).tolist()
    runs = [(most - 1, 300), group, (0, 0), (most // 2, 5), group[:8]]
    expected = [most - 1] * 300 + group + [most // 2] * 5 + group[:8]
    data = encoded(runs, width)
    for count in (len(expected), len(expected) - 3, 301, 0):
        assert parquet_pages.hybrid(data, width, count).tolist() == expected[:count]
    for cut in range(len(data) - (width > 0)):
        with pytest.raises((ValueError, IndexError)):
            parquet_pages.hybrid(data[:cut], width, len(expected))


def test_numbers_and_values_have_bounds():
    with pytest.raises(ValueError, match="33 bits"):
        parquet_pages.hybrid(memoryview(b"\3" * 99), 33, 8)
    with pytest.raises(ValueError, match="more than 64 bits"):
        parquet_pages.hybrid(memoryview(b"\xff" * 99), 3, 8)
    with pytest.raises(ValueError, match="1,000,000,000 values"):
        parquet_pages._spans(memoryview(bytes(40)), 0, 10**9)
    for data in (struct.pack("<I", 9), struct.pack("<I", 2**32 - 1) + b"x", bytes(5)):
        with pytest.raises(ValueError, match="its values end at"):
            parquet_pages._spans(memoryview(data), 0, 1)
