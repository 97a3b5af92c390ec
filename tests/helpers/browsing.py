"""What tests of the page need: a small model that looks at single patches, and a browser."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import jax

import runs
from vit_jax.inference import loaded_model
from vit_jax.training import build

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LAYERS, HEADS, TOKENS = 2, 2, 5

# Runs when the page is ready; what it puts into `seen` becomes the title, which `browse` returns.
PROBE = """<script>(async () => {
  const seen = [], $ = (id) => document.getElementById(id);
  addEventListener("error", (event) => seen.push(event.message));
  const soon = () => new Promise((go) => setTimeout(go, 5));
  const until = async (done) => { while (!done()) await soon(); };
  const key = (name) => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const tell = () => seen.push($("readout").textContent);
  const click = (canvas, x, y) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("click", { bubbles: true,
      clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
  };
  await until(() => document.body.dataset.ready);
  SCRIPT
  const said = JSON.stringify(seen);
  TELL;
})();</script></body>"""


def create():
    """A model of digits with a class token, opened as a checkpoint is."""
    options = {"num_classes": 10, "unroll": 1, "dropout": 0.0, "depth": LAYERS, "heads": HEADS}
    cfg = runs.configure(name="mine", model=options, data={"eval_split": "test[:5]"})
    params = jax.jit(build.create_model(cfg).init)(jax.random.key(0))
    for name in ("query", "key"):
        kernel = params["encoder"]["attention"][name]["kernel"]
        params["encoder"]["attention"][name]["kernel"] = 5 * kernel
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 10))
    return loaded_model.LoadedModel(
        config=cfg, params=params, classes=tuple("0123456789"), kind="run", step=7
    )


def probe_of(script, tell="document.title = said"):
    """The element that runs a test's own script and tells what it has seen."""
    return PROBE.replace("SCRIPT", script).replace("TELL", tell)


def probed(page, script, **tell):
    """The page with a script of the test's own, which its policy allows."""
    probe = probe_of(script, **tell)
    return allowing(page.replace("</body>", probe), probe)


def allowing(policy, probe):
    """A policy, or a page with one, that allows one more script."""
    content = probe.removeprefix("<script>").partition("</script>")[0].encode()
    found = base64.b64encode(hashlib.sha256(content).digest()).decode()
    allowed = f"script-src 'sha256-{found}'"
    if "script-src " in policy:
        return policy.replace("script-src", allowed, 1)
    return policy.replace("default-src 'none'", f"default-src 'none'; {allowed}", 1)


def browse(tmp_path, address):
    """What the script of a probed page has seen.

    The browser's clock runs ahead while a page waits for a timer. On a loaded machine it can reach
    its end before the page's pictures are decoded, and the script has told nothing: then again.
    """
    for budget in (10_000, 100_000):
        done = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900",
             f"--user-data-dir={tmp_path / 'profile'}", f"--virtual-time-budget={budget}",
             "--dump-dom", address],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        title = html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1])
        if title.startswith("["):  # no longer the page's own
            return json.loads(title)
    raise AssertionError(f"{address}: the script did not finish")
