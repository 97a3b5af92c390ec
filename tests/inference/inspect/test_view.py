"""The page to look into a model with: its numbers, its bounds, and what a browser makes of it."""

import base64
import dataclasses
import hashlib
import json
import re
import types
import zlib

import cv2
import jax
import numpy as np
import pytest

import browsing
import image_folders
import pages
import runs
from vit_jax import cli
from vit_jax.inference import loaded_model, prediction
from vit_jax.inference.inspect import measures, saliency, view
from vit_jax.training import build
from vit_jax.utils import messages

HEADS = browsing.HEADS
SHAPE = browsing.LAYERS, HEADS, browsing.TOKENS
needs_browser = pytest.mark.skipif(
    browsing.BROWSER is None, reason="no chromium here: apt-get install chromium"
)


@pytest.fixture(scope="module")
def opened():
    return browsing.create()


@pytest.fixture(scope="module")
def viewer(opened):
    return view.Viewer(opened)


def digits(opened):
    return list(prediction.read_examples(opened, 5))


def unpacked(text, layers, heads, tokens):
    """The rows of a page as its script reads them: (layers, heads + 1, tokens, tokens)."""
    content = zlib.decompress(base64.b64decode(text))
    count = layers * (heads + 1) * tokens
    maxima = np.frombuffer(content, "<f4", count).reshape(layers, heads + 1, tokens, 1)
    rows = np.frombuffer(content, np.uint8, offset=4 * count)
    rows = rows.reshape(layers, heads + 1, tokens, tokens)
    return maxima * (rows / 255.0) ** 2


def facts(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_weights_come_back_from_a_few_bytes():
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((3, 4, 50, 50))
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    weights = weights.astype(np.float32)
    rolled = measures.rollout_layers(weights[:, None])[:, 0]
    text = view.pack_attention(weights, rolled)
    assert len(text) < 1.4 * (weights.size + rolled.size) + 6 * weights.shape[0] * 5 * 50
    found = unpacked(text, 3, 4, 50)
    for ours, exact in ((found[:, :4], weights), (found[:, 4], rolled)):
        assert np.all(np.abs(ours - exact) <= exact.max(axis=-1, keepdims=True) / 250)
        np.testing.assert_array_equal(ours.argmax(axis=-1), exact.argmax(axis=-1))


@pytest.mark.slow
def test_a_page_holds_what_the_model_does(opened, viewer):
    pictures = digits(opened)
    known = facts(view.page(viewer, pictures))
    assert [one["name"] for one in known["images"]] == [name for name, _, _ in pictures]
    assert sorted(name for name, _, _ in pictures) == [f"digits test[{i}]" for i in range(5)]
    assert (known["layers"], known["heads"], known["rows"], known["columns"]) == (2, 2, 2, 2)
    assert known["token"] is True
    assert known["leftOut"] == 0
    views = np.stack([picture for _, picture, _ in pictures])
    (exact,) = measures.attention_weights(opened, views)
    rolled = measures.rollout_layers(exact)
    for i, one in enumerate(known["images"]):
        found = unpacked(one["attention"], *SHAPE)
        np.testing.assert_allclose(found[:, :HEADS], exact[:, i], atol=0.005)
        np.testing.assert_allclose(found[:, HEADS], rolled[:, i], atol=0.005)
        encoded = base64.b64decode(one["picture"].partition(",")[2])
        shown = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_GRAYSCALE)
        np.testing.assert_array_equal(shown, views[i, :, :, 0])
    for one, other in zip(known["images"], opened.classify(pictures, view.TOP), strict=True):
        assert [name for name, _ in one["top"]] == [name for name, _ in other.top]
        np.testing.assert_allclose(
            [p for _, p in one["top"]], [p for _, p in other.top], rtol=1e-4, atol=1e-6
        )
        assert one["truth"] == other.truth
    content = zlib.decompress(base64.b64decode(known["positions"]))
    cosines = measures.position_similarity(measures.position_tables(opened)[0]).reshape(-1)
    others = cosines.reshape(4, 4)[~np.eye(4, dtype=bool)]
    assert known["cosineRange"] == pytest.approx([others.min(), others.max()], abs=1e-6)
    np.testing.assert_allclose(np.frombuffer(content, np.uint8) / 127 - 1, cosines, atol=0.004)


def test_features_of_a_page_are_those_of_the_encoder(opened, viewer):
    pictures = digits(opened)
    known = facts(view.page(viewer, pictures))
    views = np.stack([picture for _, picture, _ in pictures])
    exact = measures.patch_features(opened, views)
    colors = measures.create_palette(exact).colors(exact)
    assert known["width"] == exact.shape[-1]
    for one, own, shades in zip(known["images"], exact, colors, strict=True):
        found = np.frombuffer(zlib.decompress(base64.b64decode(one["features"])), "<i2") / 32767
        patches = own.reshape(4, -1)
        patches = patches / np.linalg.norm(patches, axis=1, keepdims=True)
        np.testing.assert_allclose(found.reshape(4, -1), patches, atol=2e-5)
        found = np.frombuffer(zlib.decompress(base64.b64decode(one["colors"])), np.uint8)
        np.testing.assert_allclose(found.reshape(2, 2, 3), 255 * shades, atol=1.01)
        encoded = np.frombuffer(base64.b64decode(one["picture"].partition(",")[2]), np.uint8)
        assert cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED).shape[:2] == views.shape[1:3]
    # Where it looked for each class, from 0 to 1 at the most.
    for one, pixels in zip(known["images"], views, strict=True):
        labels = [opened.classes.index(name) for name, _ in one["top"]]
        found = np.frombuffer(zlib.decompress(base64.b64decode(one["maps"])), np.uint8) / 255
        found = found.reshape(len(labels), 2, 4)
        maps = saliency.class_maps(opened, pixels, labels)
        for shares, exact in zip(found, maps, strict=True):
            for share, kind in zip(shares, ("gradient rollout", "Grad-CAM"), strict=True):
                expected = exact[kind].ravel() / max(exact[kind].max(), 1e-30)
                np.testing.assert_allclose(share, expected.clip(0, 1), atol=0.0021)


def test_a_picture_has_the_colors_of_its_image():
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    encoded = np.frombuffer(base64.b64decode(view._png(image).partition(",")[2]), np.uint8)
    np.testing.assert_array_equal(cv2.imdecode(encoded, cv2.IMREAD_COLOR)[:, :, ::-1], image)


def test_a_picture_shows_what_patches_cover_at_the_scale_of_people(opened, monkeypatch):
    """Of a view of 8 x 8 pixels, 6 x 4 of them here, and of the photo four times as many."""
    monkeypatch.setattr(view.Viewer, "_side", (6, 4))
    photo = np.random.default_rng(0).integers(0, 256, (32, 32, 1), np.uint8)
    one, _ = view.Viewer(opened).examine(("photo", photo, None))
    encoded = np.frombuffer(base64.b64decode(one["picture"].partition(",")[2]), np.uint8)
    shown = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(shown, photo[:24, :16, 0])


def test_what_a_page_has_no_room_for_is_said(opened, viewer, monkeypatch, caplog):
    caplog.set_level("INFO")
    pictures = digits(opened)
    size = max(len(viewer.show(one)["attention"]) for one in pictures) + 500
    monkeypatch.setattr(view, "LIMIT", 2 * size)
    known = facts(view.page(viewer, pictures))
    assert 1 <= len(known["images"]) < 5
    assert known["leftOut"] == 5 - len(known["images"])
    assert f"{known['leftOut']} images left out" in caplog.text
    monkeypatch.setattr(view, "LIMIT", 1)
    assert len(facts(view.page(viewer, pictures))["images"]) == 1


def test_a_model_without_positions_has_no_tiles_and_one_without_a_head_no_classes(opened):
    cfg = runs.configure(model={"position": "none", "pooling": "gap", "num_classes": 10})
    params = jax.jit(build.create_model(cfg).init)(jax.random.key(0))
    bare = loaded_model.LoadedModel(
        config=cfg, params=params, classes=opened.classes, kind="x", fresh={"head/kernel": "none"}
    )
    known = facts(view.page(view.Viewer(bare), digits(opened)[:1]))
    assert "positions" not in known
    assert known["token"] is False
    assert known["images"][0]["top"] == []


def test_the_command_writes_a_page_about_weights_of_others(tmp_path, capsys):
    fixture = runs.ROOT / "tests" / "fixtures" / "vit_tiny_token.npz"
    image_folders.draw(tmp_path, "a.png")
    flags = [f"--checkpoint={fixture}", f"{tmp_path}", f"--output={tmp_path}/out"]
    assert cli.main(["inspect", "view", *flags]) == 0
    written = tmp_path / "out" / "view.html"
    assert capsys.readouterr().out.strip() == str(written)
    assert facts(written.read_text())["images"][0]["name"].endswith("a.png")


def expected(weights, layer, head, patch):
    """The words under the image, from exact weights (L, H + 1, N, N)."""
    row = weights[layer, :HEADS].mean(axis=0) if head is None else weights[layer, head]
    row = row[0 if patch is None else 1 + patch]
    best = int(row[1:].argmax())

    def percent(value):
        return f"{100 * value:.{1 if value < 0.0995 else 0}f} %"

    who = (
        "Class token" if patch is None else f"Patch in row {patch // 2 + 1}, column {patch % 2 + 1}"
    )
    where = f"layer {layer + 1}, {'all heads' if head is None else f'head {head + 1}'}"
    if head == HEADS:
        where = f"through layer {layer + 1}"
    most = f"most on row {best // 2 + 1}, column {best % 2 + 1}, {percent(row[1 + best])}."
    return f"{who}, {where}: {most} {percent(row[0])} on the class token."


@needs_browser
def test_a_person_clicks_slides_and_types(opened, viewer, tmp_path):
    page = view.page(viewer, digits(opened))
    one = facts(page)["images"]
    first, second = (unpacked(one[i]["attention"], *SHAPE) for i in (0, 1))
    script = """
      tell();
      click($("picture"), 0.75, 0.25); tell();
      $("layer").value = 1; $("layer").dispatchEvent(new Event("input")); tell();
      document.querySelectorAll("#heads button")[2].click(); tell();
      key("ArrowDown"); tell(); key("ArrowLeft"); tell(); key("]"); tell(); key("1"); tell();
      key("0"); key("r"); tell(); key("["); tell(); key("c"); key("a"); tell();
      const second = document.querySelectorAll("#layers button")[1];
      second.dispatchEvent(new Event("pointerenter")); tell();
      key("n"); await until(() => $("message").textContent === "SECOND"); tell();
      click($("tiles"), 0.9, 0.9); key("p");
      seen.push($("readout").textContent.startsWith("Patch in row 2, column 2: most alike is"));
      key("a"); $("layer").focus(); key("ArrowLeft"); tell();
      seen.push($("top").children.length);
    """
    script = script.replace("SECOND", one[1]["name"])
    (tmp_path / "page.html").write_text(browsing.probed(page, script))
    said = browsing.browse(tmp_path, f"file://{tmp_path}/page.html")
    assert said == [
        expected(first, 1, None, None),
        expected(first, 1, None, 1),
        expected(first, 0, None, 1),
        expected(first, 0, 1, 1),
        expected(first, 0, 1, 3),
        expected(first, 0, 1, 2),
        expected(first, 1, 1, 2),
        expected(first, 1, 0, 2),
        expected(first, 1, HEADS, 2),
        expected(first, 0, HEADS, 2),
        expected(first, 0, None, None),
        expected(first, 1, None, None),  # while the pointer is there
        expected(second, 0, None, None),
        True,
        expected(second, 0, None, 3),  # arrows on the slider are the slider's
        5,
    ]


@needs_browser
def test_a_person_sees_features_and_matches(opened, viewer, tmp_path):
    pictures = digits(opened)
    page = view.page(viewer, pictures)
    known = facts(page)["images"]
    exact = measures.patch_features(opened, np.stack([picture for _, picture, _ in pictures[:3]]))
    patches = exact.reshape(3, 4, -1).astype(np.float64)
    patches /= np.linalg.norm(patches, axis=2, keepdims=True)
    script = """
      const words = () => seen.push([$("readout").textContent, $("other-readout").textContent]);
      const pixel = (id, x, y) => { const canvas = $(id);
        const at = [x * canvas.width, y * canvas.height];
        return [...canvas.getContext("2d").getImageData(...at, 1, 1).data]; };
      key("f"); tell(); seen.push($("beside").hidden, $("by-layer").hidden);
      key("m"); words(); seen.push($("beside").hidden, $("against").value);
      click($("picture"), 0.75, 0.25); words();
      key("b"); await until(() => $("against").value === "2"); words();
      click($("other"), 0.25, 0.75); await until(() => $("message").textContent === "THIRD");
      await until(() => $("against").value === "0"); words();
      $("against").value = "1"; $("against").dispatchEvent(new Event("change"));
      await until(() => $("other-readout").textContent !== seen.at(-1)[1]); words();
      document.querySelector('input[value="features"]').click();
      $("plain").click(); const bare = pixel("picture", 0.25, 0.25);
      $("plain").click(); const lit = pixel("picture", 0.25, 0.25);
      seen.push(bare, lit);
    """.replace("THIRD", known[2]["name"])
    (tmp_path / "page.html").write_text(browsing.probed(page, script))
    said = browsing.browse(tmp_path, f"file://{tmp_path}/page.html")

    def place(patch):
        return f"row {patch // 2 + 1}, column {patch % 2 + 1}"

    def words(one, patch, other):
        here, there = patches[one] @ patches[one, patch], patches[other] @ patches[one, patch]
        here[patch] = -2
        like, far = int(here.argmax()), int(there.argmax())
        return [
            f"Patch in {place(patch)}: most alike is {place(like)}, cosine {here[like]:.2f}.",
            f"There: most alike is {place(far)}, cosine {there[far]:.2f}.",
        ]

    assert said[:3] == ["Each patch in the color of its features.", True, True]
    assert said[3] == ["Choose a patch to see which are like it.", ""]
    assert said[4:6] == [False, "1"]
    assert said[6:10] == [words(0, 1, 1), words(0, 1, 2), words(2, 2, 0), words(2, 2, 1)]
    bare, lit = (np.array(one[:3]) for one in said[10:])
    shades = np.frombuffer(zlib.decompress(base64.b64decode(known[2]["colors"])), np.uint8)
    np.testing.assert_allclose(lit, 0.15 * bare + 0.85 * shades[:3], atol=2)


HOSTILE = [
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover=alert(1) x="',
    "$" + "{name} $script <!--<script>",
    "a\u202egnp.exe\u2028\x00\x1b[2J",
    "\udce9.png",
    "javascript:alert(1)//" + "x" * 500,
]


@pytest.fixture(scope="module")
def hostile(opened):
    """A page whose image, class, run and true class have hostile names."""
    cfg = dataclasses.replace(opened.config, name=HOSTILE[0])
    classes = tuple((HOSTILE * 2)[:10])
    bad = view.Viewer(dataclasses.replace(opened, config=cfg, classes=classes))
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    encoded = cv2.imencode(".png", image)[1].tobytes()
    return view.page(bad, [(name, encoded, name) for name in HOSTILE])


def test_a_hostile_name_is_text(hostile):
    scripts = [attributes for tag, attributes in pages.Page(hostile).elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    elements = pages.Page(hostile).elements
    assert not [name for _, attributes in elements for name in attributes if name[:2] == "on"]
    assert [one["name"] for one in facts(hostile)["images"]] == [
        messages.printable(name) for name in HOSTILE
    ]
    content = hostile.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in hostile


@needs_browser
def test_a_browser_runs_nothing_of_hostile_names(hostile, tmp_path):
    script = """
      const violations = [];
      addEventListener("securitypolicyviolation",
        (event) => violations.push(event.violatedDirective));
      seen.push(document.querySelectorAll("img:not([src^='data:'])").length);
      const names = [];
      for (let i = 0; i < NUMBER; i++) {
        names.push($("message").textContent); key("n"); await soon();
      }
      seen.push(names.length, violations.length);
      const mine = document.createElement("script");
      mine.textContent = "document.body.dataset.ran = 1";
      document.body.append(mine);
      document.body.insertAdjacentHTML("beforeend",
        "<img src='data:,' onerror='document.body.dataset.ran = 1'>");
      await fetch("https://evil.example/").catch(() => seen.push("no connection"));
      await until(() => violations.length >= 3);
      seen.push(violations.sort(), document.body.dataset.ran ?? "nothing ran");
    """.replace("NUMBER", str(len(HOSTILE)))
    page = browsing.probed(hostile, script).encode(errors="backslashreplace")
    (tmp_path / "page.html").write_bytes(page)
    refused = ["connect-src", "script-src-attr", "script-src-elem"]
    said = [0, len(HOSTILE), 0, "no connection", refused, "nothing ran"]
    assert browsing.browse(tmp_path, f"file://{tmp_path}/page.html") == said


@needs_browser
def test_narrow_screens_do_not_scroll_sideways_and_everything_has_a_name(opened, viewer, tmp_path):
    page = view.page(viewer, digits(opened))
    # A frame of 400 pixels: a window of a browser may not be as narrow.
    script = """
      seen.push(document.documentElement.scrollWidth <= innerWidth);
      seen.push([...document.images].every((image) => image.naturalWidth));
      const named = (one) => one.ariaLabel || one.textContent.trim() || one.labels?.length;
      const all = [...document.querySelectorAll("button, input, canvas[role]")];
      seen.push(all.filter((one) => !named(one)).map((one) => one.outerHTML));
      seen.push($("picture").getBoundingClientRect().width > 300);
    """
    inner = browsing.probed(page, script, tell="parent.postMessage(said, '*')")
    (tmp_path / "inner.html").write_text(inner)
    (tmp_path / "outer.html").write_text(
        "<title>[]</title><script>onmessage = (event) => { document.title = event.data; }</script>"
        '<iframe src="inner.html" width="400" height="800" style="border:0">'
    )
    assert browsing.browse(tmp_path, f"file://{tmp_path}/outer.html") == [True, True, [], True]


@pytest.mark.parametrize(("count", "shown"), [(None, view.COUNT), (3, 3)])
def test_so_many_files_are_shown(count, shown, monkeypatch):
    monkeypatch.setattr(view.loading, "load", lambda *_, **__: types.SimpleNamespace(config=None))
    monkeypatch.setattr(view.checks, "check_fixed", lambda *_: None)
    monkeypatch.setattr(view, "Viewer", lambda opened: "viewer")
    monkeypatch.setattr(view.prediction, "list_files", lambda *given: given)
    monkeypatch.setattr(view.prediction, "read_files", lambda files: files)
    assert view.open_viewer("run", {}, images=["a"], count=count, seed=7) == (
        "viewer", (["a"], shown, 7),
    )  # fmt: skip
