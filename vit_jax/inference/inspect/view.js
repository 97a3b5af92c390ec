"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const model = JSON.parse($("data").textContent);
  const { layers, heads, rows, columns, token, before, single } = model;
  const patches = rows * columns, tokens = patches + before;
  const OUTPUT = -1, ALL = -1; // what stands for no patch, and for no single head
  const OUTPUT_NAME = !single ? "Mean of all patches" : token ? "Class token" : "First patch";
  const MODES = {
    attention: "What the chosen patch attends to in one layer, by one head or the mean of all.",
    rollout: "What the chosen patch is made of after so many layers: heads averaged, the residual added, layers multiplied.",
    position: "How alike the position embedding of the chosen patch is to those of the others.",
    features: "What the last layer makes of each patch: red, green and blue are the first three principal components, of all images together. Alike colors, alike features.",
    match: "Which patches the last layer makes alike: the cosine of their features with those of the chosen patch, in this image and in another.",
  };
  const KINDS = ["gradient rollout", "Grad-CAM"];
  MODES.class = "Which patches speak for the chosen class: by gradient rollout, attention times its gradient through all layers, or by Grad-CAM of the last layer.";
  const HEAT = [[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];
  const ITSELF = [191, 191, 191];

  const state = { image: 0, against: 0, layer: layers - 1, head: ALL, patch: OUTPUT, mode: "attention", label: 0, kind: 0, plain: false };
  let hover = {}; // what the pointer is over, in the place of what was chosen
  let weights = null; // of the chosen image
  let cosines = null;
  const photo = new Image(), otherPhoto = new Image();
  const PLAIN = ["position", "features", "match", "class"]; // no layers and heads
  const NO_PATCH = ["features", "class"]; // nor a chosen patch

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    // "deflate" is zlib's format, with its header, as Python's zlib.compress writes it.
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  // One row of weights, (patches) and what went to the class token. Head `heads` is the rollout.
  function row(layer, head, query) {
    const { maxima, bytes } = weights, all = new Float32Array(tokens);
    const add = (one, share) => {
      const at = (layer * (heads + 1) + one) * tokens + query;
      // 65025 is 255 squared: the bytes hold square roots.
      const scale = share * maxima[at] / 65025;
      for (let k = 0; k < tokens; k++) all[k] += scale * bytes[at * tokens + k] ** 2;
    };
    if (head === ALL) for (let one = 0; one < heads; one++) add(one, 1 / heads);
    else add(head, 1);
    return all;
  }

  // Cosines of the features of a patch of one image with those of all patches of another.
  function cosinesOf(one, patch, other) {
    const wide = model.width, values = new Float32Array(patches), from = patch * wide;
    for (let k = 0; k < patches; k++) {
      let sum = 0;
      for (let d = 0; d < wide; d++) sum += one[from + d] * other[k * wide + d];
      values[k] = sum / 32767 ** 2;
    }
    return values;
  }

  function seen(shown) {
    if (shown.mode === "features") return { values: new Float32Array(patches), self: 0 };
    if (shown.mode === "class") {
      const { maps } = model.images[state.image], from = (2 * shown.label + shown.kind) * patches;
      return { values: maps ? Float32Array.from(maps.subarray(from, from + patches)) : new Float32Array(patches), self: 0 };
    }
    if (shown.mode === "match") {
      const mine = model.images[state.image].vectors;
      const values = shown.patch === OUTPUT ? new Float32Array(patches) : cosinesOf(mine, shown.patch, mine);
      return { values, self: 0, range: rangeOf(shown.patch, values, []) };
    }
    if (shown.mode === "position") {
      const values = new Float32Array(patches);
      if (cosines && shown.patch !== OUTPUT) {
        for (let k = 0; k < patches; k++) values[k] = cosines[shown.patch * patches + k] / 127 - 1;
      }
      return { values, self: 0 };
    }
    const head = shown.mode === "rollout" ? heads : shown.head;
    let all;
    if (shown.patch !== OUTPUT) all = row(shown.layer, head, shown.patch + before);
    else if (single) all = row(shown.layer, head, 0);
    else {
      all = new Float32Array(tokens);
      for (let q = tokens - patches; q < tokens; q++) row(shown.layer, head, q).forEach((w, k) => { all[k] += w / patches; });
    }
    return { values: all.subarray(before), self: token ? all[0] : 0 };
  }

  function color(stops, share) {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (at - low)));
  }

  function largest(values) {
    return values.reduce((best, value) => Math.max(best, value), 1e-12);
  }

  // Where a cosine is between the least and the greatest one of different patches.
  function alike(cosine) {
    const [low, high] = model.cosineRange;
    return (cosine - low) / (high - low);
  }

  function drawMap(canvas, values) {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d"), pixels = context.createImageData(columns, rows), most = largest(values);
    values.forEach((value, k) => pixels.data.set([...color(HEAT, value / most), 255], 4 * k));
    context.putImageData(pixels, 0, 0);
  }

  // What is over each patch: a style for its number, or nothing.
  function filling(shown, found) {
    if (state.plain || (PLAIN.includes(shown.mode) && !NO_PATCH.includes(shown.mode) && shown.patch === OUTPUT)) return null;
    if (shown.mode === "features") {
      const { colors } = model.images[state.image];
      return (k) => `rgba(${colors.subarray(3 * k, 3 * k + 3)}, 0.85)`;
    }
    // Colored, not only lit: images may be black. The patch itself is as alike as can be.
    const lit = (light) => `rgba(${color(HEAT, light)}, ${0.7 - 0.3 * light})`;
    if (shown.mode === "match") return (k) => lit(between(found.values[k], found.range));
    const most = largest(found.values);
    if (shown.mode === "position") return (k) => lit(Math.min(Math.max(alike(found.values[k]), 0), 1));
    return (k) => lit(Math.max(found.values[k], 0) / most);
  }

  const between = (value, [low, high]) => Math.min(Math.max((value - low) / Math.max(high - low, 1e-6), 0), 1);

  // The least and the greatest cosine of different patches, of both images.
  function rangeOf(patch, mine, theirs) {
    const all = [...mine.filter((_, k) => k !== patch), ...theirs];
    return [Math.min(...all), Math.max(...all)];
  }

  function drawPicture(canvas, photo, fill, patch) {
    const [height, width] = model.side;
    // 864 is twice the 27rem of the column in view.css, for sharp screens.
    const scale = Math.max(1, Math.ceil(864 / Math.max(height, width)));
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d"), w = canvas.width / columns, h = canvas.height / rows;
    context.imageSmoothingEnabled = Math.max(photo.naturalHeight, photo.naturalWidth) >= 96;
    context.drawImage(photo, 0, 0, canvas.width, canvas.height);
    for (let k = 0; fill && k < patches; k++) {
      context.fillStyle = fill(k);
      // Rounded edges are shared by neighbors: patches neither overlap nor leave gaps.
      const x = Math.round((k % columns) * w), y = Math.round(Math.floor(k / columns) * h);
      context.fillRect(x, y, Math.round((k % columns + 1) * w) - x, Math.round((Math.floor(k / columns) + 1) * h) - y);
    }
    if (patch !== OUTPUT) {
      const x = (patch % columns) * w, y = Math.floor(patch / columns) * h, line = canvas.width / 200;
      context.lineWidth = 2 * line;
      context.strokeStyle = "rgba(0, 0, 0, 0.6)";
      context.strokeRect(x, y, w, h);
      context.lineWidth = line;
      context.strokeStyle = "#ff9e64";
      context.strokeRect(x, y, w, h);
    }
  }

  const place = (patch) => `row ${Math.floor(patch / columns) + 1}, column ${patch % columns + 1}`;
  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;

  // The other image of a match, lit on the scale of both, its best patch outlined.
  function drawOther(shown, found) {
    const other = model.images[state.against];
    $("beside").hidden = shown.mode !== "match";
    if (shown.mode !== "match" || !other.vectors) return;
    if (shown.patch === OUTPUT) {
      $("other-readout").textContent = "";
      return drawPicture($("other"), otherPhoto, null, OUTPUT);
    }
    const values = cosinesOf(model.images[state.image].vectors, shown.patch, other.vectors);
    found.range = rangeOf(shown.patch, found.values, values);
    const best = values.indexOf(Math.max(...values));
    drawPicture($("other"), otherPhoto, filling(shown, { values, range: found.range }), best);
    $("other-readout").textContent = `There: most alike is ${place(best)}, cosine ${values[best].toFixed(2)}.`;
  }

  function describe(shown, found) {
    if (shown.mode === "features") return "Each patch in the color of its features.";
    if (shown.mode === "class") {
      const [name, share] = model.images[state.image].top[shown.label] ?? ["", 0];
      const most = largest(found.values), best = found.values.indexOf(most);
      return `${name}, ${percent(share)}, ${KINDS[shown.kind]}: ${best < 0 ? "nothing speaks for it" : `most on ${place(best)}`}.`;
    }
    if (shown.mode === "match" && shown.patch === OUTPUT) return "Choose a patch to see which are like it.";
    const who = shown.patch === OUTPUT ? OUTPUT_NAME : `Patch in ${place(shown.patch)}`;
    if (shown.mode === "position" && shown.patch === OUTPUT) return "Choose a patch to see which positions are like its own.";
    const best = found.values.indexOf(found.values.reduce((a, b) => Math.max(a, b), -Infinity));
    if (PLAIN.includes(shown.mode)) {
      const others = found.values.map((value, k) => (k === shown.patch ? -2 : value));
      const like = others.indexOf(others.reduce((a, b) => Math.max(a, b), -2));
      return patches < 2 ? who : `${who}: most alike is ${place(like)}, cosine ${others[like].toFixed(2)}.`;
    }
    const where = shown.mode === "rollout" ? `through layer ${shown.layer + 1}`
      : `layer ${shown.layer + 1}, ${shown.head === ALL ? "all heads" : `head ${shown.head + 1}`}`;
    const self = token ? ` ${percent(found.self)} on the class token.` : "";
    return `${who}, ${where}: most on ${place(best)}, ${percent(found.values[best])}.${self}`;
  }

  function film(container, count, name, pick) {
    container.style.setProperty("--shape", `${columns} / ${rows}`);
    container.style.setProperty("--across", Math.ceil(count / Math.ceil(count / 13))); // rows of one length
    return Array.from({ length: count }, (_, index) => {
      const button = document.createElement("button"), canvas = document.createElement("canvas");
      button.type = "button";
      button.append(canvas, name(index).short);
      button.setAttribute("aria-label", name(index).long);
      button.addEventListener("click", () => choose(pick(index)));
      button.addEventListener("pointerenter", () => preview(pick(index)));
      button.addEventListener("pointerleave", () => preview({}));
      container.append(button);
      return { button, canvas };
    });
  }

  const layerFilm = film($("layers"), layers, (i) => ({ short: `${i + 1}`, long: `Layer ${i + 1}` }), (i) => ({ layer: i }));
  const headFilm = film($("heads"), heads + 1,
    (i) => (i ? { short: `${i}`, long: `Head ${i}` } : { short: "all", long: "Mean of all heads" }),
    (i) => ({ head: i - 1 }));

  function draw() {
    if (!weights) return;
    const shown = { ...state, ...hover }, found = seen(shown);
    drawOther(shown, found);
    const marked = NO_PATCH.includes(shown.mode) ? OUTPUT : shown.patch;
    drawPicture($("picture"), photo, filling(shown, found), marked);
    $("readout").textContent = describe(shown, found);
    $("layer").value = shown.layer + 1;
    $("layer-value").textContent = `${shown.layer + 1} of ${layers}`;
    $("head-value").textContent = shown.head === ALL ? "mean of all" : `${shown.head + 1} of ${heads}`;
  }

  // Everything that what is chosen decides, but not what the pointer is over.
  function drawAll() {
    if (!weights) return;
    draw();
    const position = PLAIN.includes(state.mode);
    $("by-layer").hidden = position;
    $("by-class").hidden = state.mode !== "class";
    $("label").value = state.label;
    $("kind").value = state.kind;
    $("by-head").hidden = state.mode !== "attention";
    $("layer-title").textContent = state.mode === "rollout" ? "Through layer" : "Layer";
    $("meaning").textContent = MODES[state.mode];
    $("output").hidden = NO_PATCH.includes(state.mode);
    $("output").textContent = OUTPUT_NAME;
    $("output").setAttribute("aria-pressed", state.patch === OUTPUT);
    $("plain").setAttribute("aria-pressed", state.plain);
    document.querySelectorAll('input[name="mode"]').forEach((input) => { input.checked = input.value === state.mode; });
    if (!position) {
      layerFilm.forEach(({ button, canvas }, layer) => {
        button.setAttribute("aria-pressed", layer === state.layer);
        drawMap(canvas, seen({ ...state, layer }).values);
      });
    }
    if (state.mode === "attention") {
      headFilm.forEach(({ button, canvas }, index) => {
        button.setAttribute("aria-pressed", index - 1 === state.head);
        drawMap(canvas, seen({ ...state, head: index - 1 }).values);
      });
    }
    drawTiles();
  }

  function choose(change) {
    Object.assign(state, change);
    hover = {};
    drawAll();
  }

  function preview(change) {
    hover = change;
    draw();
  }

  // Tiles are drawn side by side from one small picture of all of them.
  const small = new OffscreenCanvas(columns * columns, rows * rows);

  function paintTiles() {
    const context = small.getContext("2d"), tile = context.createImageData(columns, rows);
    for (let q = 0; q < patches; q++) {
      for (let k = 0; k < patches; k++) {
        const rgb = k === q ? ITSELF : color(HEAT, alike(cosines[q * patches + k] / 127 - 1));
        tile.data.set([...rgb, 255], 4 * k);
      }
      context.putImageData(tile, (q % columns) * columns, Math.floor(q / columns) * rows);
    }
  }

  function drawTiles() {
    if (!cosines) return;
    const canvas = $("tiles"), scale = Math.max(1, Math.ceil(1200 / small.width));
    const width = columns * scale, height = rows * scale, gap = Math.max(2, Math.round(0.08 * Math.min(width, height)));
    canvas.width = columns * (width + gap) + gap; // a gap all around has room for the outline
    canvas.height = rows * (height + gap) + gap;
    canvas.style.maxWidth = `${Math.min(40, 5 * columns)}rem`;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    const corner = (patch) => [(patch % columns) * (width + gap) + gap, Math.floor(patch / columns) * (height + gap) + gap];
    for (let patch = 0; patch < patches; patch++) {
      const from = [(patch % columns) * columns, Math.floor(patch / columns) * rows, columns, rows];
      context.drawImage(small, ...from, ...corner(patch), width, height);
    }
    if (state.patch === OUTPUT) return;
    context.lineWidth = gap;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--mark");
    const [x, y] = corner(state.patch);
    context.strokeRect(x - gap / 2, y - gap / 2, width + gap, height + gap);
  }

  function at(event, canvas) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    const line = Math.floor((event.clientY - box.top) / box.height * rows);
    return Math.min(Math.max(line, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1);
  }

  function showTop(image) {
    $("label").replaceChildren(...image.top.map(([name], index) => new Option(name, index)));
    document.querySelector('input[value="class"]').closest("label").hidden = !image.top.length;
    state.label = 0;
    $("predictions").hidden = !image.top.length;
    $("top").replaceChildren(...image.top.map(([name, share]) => {
      const item = document.createElement("li"), label = document.createElement("b");
      const bar = document.createElement("i"), number = document.createElement("span");
      label.textContent = label.title = name;
      bar.style.width = `${Math.max(100 * share, 0.5)}%`;
      number.textContent = percent(share);
      item.append(label, bar, number);
      return item;
    }));
    $("truth").textContent = image.truth === undefined ? "" : `It is ${image.truth}.`;
  }

  async function show(index) {
    state.image = index;
    hover = {};
    const image = model.images[index];
    [...$("images").children].forEach((button, i) => {
      button.setAttribute("aria-checked", i === index);
      button.tabIndex = i === index ? 0 : -1;
    });
    photo.src = image.picture;
    const [buffer] = await Promise.all([unpack(image.attention), photo.decode(), open(image)]);
    if (state.image !== index) return; // another one was chosen meanwhile
    const count = layers * (heads + 1) * tokens;
    weights = { maxima: new Float32Array(buffer, 0, count), bytes: new Uint8Array(buffer, 4 * count) };
    document.querySelector(".look").hidden = false;
    showTop(image);
    say(image.name);
    if (state.against === index) await against((index + 1) % model.images.length);
    drawAll();
  }

  async function open(image) {
    image.vectors ??= new Int16Array(await unpack(image.features));
    if (image.maps && !(image.maps instanceof Uint8Array)) image.maps = new Uint8Array(await unpack(image.maps));
    image.colors = image.colors instanceof Uint8Array ? image.colors : new Uint8Array(await unpack(image.colors));
  }

  // Chooses the image to match with.
  async function against(index) {
    const other = model.images[index];
    otherPhoto.src = other.picture;
    await Promise.all([otherPhoto.decode(), open(other)]);
    state.against = index;
    $("against").value = index;
    draw();
  }

  function add(image) {
    const button = document.createElement("button"), picture = document.createElement("img");
    const index = $("images").children.length;
    picture.src = image.picture;
    picture.alt = "";
    picture.onload = () => picture.classList.toggle("small", Math.max(picture.naturalHeight, picture.naturalWidth) < 96);
    button.type = "button";
    button.title = image.name;
    button.setAttribute("role", "radio");
    button.setAttribute("aria-label", image.name);
    button.append(picture);
    button.addEventListener("click", () => show(index));
    $("images").append(button);
    $("against").append(new Option(image.name, index));
    return index;
  }

  function say(text, wrong = false) {
    const more = model.leftOut ? ` · ${model.leftOut} more left out, for the size of this page` : "";
    $("message").textContent = wrong ? text : text + more;
    $("message").classList.toggle("wrong", wrong);
  }

  async function send(file) {
    say(`${file.name} …`);
    try {
      const answer = await fetch("look", { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
      const image = await answer.json();
      if (!answer.ok) throw new Error(image.error);
      image.name = file.name;
      model.images.push(image);
      await show(add(image));
    } catch (error) {
      say(`${file.name}: ${error.message}`, true);
    }
  }

  function move(down, right) {
    const from = state.patch === OUTPUT ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : state.patch;
    if (state.patch === OUTPUT) return choose({ patch: from });
    const line = Math.min(Math.max(Math.floor(from / columns) + down, 0), rows - 1);
    const column = Math.min(Math.max(from % columns + right, 0), columns - 1);
    choose({ patch: line * columns + column });
  }

  const KEYS = {
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    "[": () => choose({ layer: Math.max(state.layer - 1, 0) }),
    "]": () => choose({ layer: Math.min(state.layer + 1, layers - 1) }),
    ",": () => choose({ head: Math.max(state.head - 1, ALL) }),
    ".": () => choose({ head: Math.min(state.head + 1, heads - 1) }),
    c: () => choose({ patch: OUTPUT }), 0: () => choose({ head: ALL }),
    a: () => choose({ mode: "attention" }), r: () => choose({ mode: "rollout" }),
    p: () => cosines && choose({ mode: "position" }),
    w: () => model.images[state.image]?.top.length && choose({ mode: "class" }),
    f: () => choose({ mode: "features" }), m: () => choose({ mode: "match" }),
    b: () => model.images.length && against((state.against + 1) % model.images.length),
    n: () => model.images.length && show((state.image + 1) % model.images.length),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = event.key.startsWith("Arrow"), focus = document.activeElement;
    if (focus.matches("select") || (arrow && focus.matches("input"))) return; // which have their own
    if (arrow && focus.closest("#images")) {
      const count = model.images.length, step = ["ArrowRight", "ArrowDown"].includes(event.key) ? 1 : count - 1;
      show((state.image + step) % count);
      $("images").children[state.image].focus();
    } else if (KEYS[event.key]) KEYS[event.key]();
    else if (/^[1-9]$/.test(event.key)) {
      if (Number(event.key) <= heads) choose({ head: Number(event.key) - 1 });
    } else return;
    event.preventDefault();
  });

  $("stage").addEventListener("click", (event) => {
    const patch = at(event, $("picture"));
    choose({ patch: patch === state.patch ? OUTPUT : patch });
  });
  $("other").addEventListener("click", async (event) => { // what is clicked there is compared with what is here
    const patch = at(event, $("other")), here = state.image, there = state.against;
    state.patch = patch;
    await show(there);
    await against(here);
  });
  ["label", "kind"].forEach((id) => $(id).addEventListener("change", () => choose({ [id]: Number($(id).value) })));
  $("against").addEventListener("change", () => against(Number($("against").value)));
  $("tiles").addEventListener("click", (event) => choose({ patch: at(event, $("tiles")) }));
  $("output").addEventListener("click", () => choose({ patch: OUTPUT }));
  $("plain").addEventListener("click", () => choose({ plain: !state.plain }));
  $("layer").max = layers;
  $("layer").addEventListener("input", () => choose({ layer: Number($("layer").value) - 1 }));
  document.querySelectorAll('input[name="mode"]').forEach((input) => {
    input.addEventListener("change", () => choose({ mode: input.value }));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTiles);

  if (model.live) {
    $("live").hidden = false;
    // Emptied, or the same file would not be a change the next time.
    $("file").addEventListener("change", () => { [...$("file").files].forEach(send); $("file").value = ""; });
    // By default a browser refuses drops, or opens the file in place of the page.
    document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      [...event.dataTransfer.files].forEach(send);
    });
  }
  if (model.positions) {
    cosines = new Uint8Array(await unpack(model.positions));
    paintTiles();
    model.cosineRange.forEach((cosine, i) => { $(["least", "greatest"][i]).textContent = cosine.toFixed(2).replace("-", "\u2212"); });
    if (model.positionTables > 1) $("position-note").textContent += " Each layer has its own; these are the first layer's.";
  } else {
    $("position-section").hidden = true;
    document.querySelector('input[value="position"]').closest("label").hidden = true;
  }
  $("kind").replaceChildren(...KINDS.map((name, index) => new Option(name, index)));
  model.images.forEach(add);
  if (model.images.length) await show(0);
  else document.querySelector(".look").hidden = true;
  if (!model.images.length) say("Show it a picture to begin.");
  drawTiles();
  document.body.dataset.ready = "yes";
})().catch((error) => {
  document.getElementById("message").textContent = `This browser cannot show it: ${error.message}`;
});
