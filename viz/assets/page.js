// Made from viz/scripts by `npm run bundle`; do not edit. Sources: 42ed13bc9404388a29bf10a25681147fe60e9e6e2de31e7482f367bb41a08c2f

// viz/scripts/canvas.js
var INK = {};
var PALETTE = {
  light: {
    page: "#ffffff",
    ink: "#1b2330",
    soft: "#5c6675",
    line: "#d9dde3",
    box: "#f3f5f8",
    node: "#ffffff",
    idle: "#f2efe6",
    gap: "#fafbfc",
    focus: "#2f3d55",
    found: "#ffe08a",
    muted: "#c3cad4",
    missing: "#c8102e",
    excess: "#8d96a3",
    free: "#00664a",
    producer: "#0072b2",
    consumer: "#d55e00",
    arrow: "#1b2330",
    RAW: "#5b3fb0",
    WAR: "#a63fb8",
    WAW: "#d0409a",
    reuse: "#a79fbd",
    kernels: ["#b7a6d9", "#8fcbb3", "#e6a9bb", "#d3cb83", "#8dbfc6", "#b4b8c0"],
    parts: { work: "#44546a", wait: "#b08968", idle: "#dccfa6", gap: "#c3cad4", beside: "#7d8896" },
    schedulers: ["#1b2330", "#7d8896", "#8a6b34"],
    patterns: {
      one_to_one: "#4cb88a",
      one_to_many: "#4cb88a",
      many_to_one: "#4cb88a",
      group: "#7fae2e",
      window: "#1f9d78",
      row: "#12795f",
      column: "#12795f",
      strided: "#5d8a12",
      all_to_all: "#0a4436",
      irregular: "#6d7684",
      independent: "#b8bfc9"
    }
  },
  dark: {
    page: "#191f28",
    ink: "#e6eaf0",
    soft: "#98a4b3",
    line: "#3d4856",
    box: "#1f2731",
    node: "#262f3b",
    idle: "#2c2b28",
    gap: "#161b23",
    focus: "#c9d5e8",
    found: "#6a5410",
    muted: "#56616f",
    missing: "#ff5d6c",
    excess: "#7d8896",
    free: "#5fd3ab",
    producer: "#4aa8e8",
    consumer: "#ff8a3d",
    arrow: "#e6eaf0",
    RAW: "#a48bf0",
    WAR: "#d287e6",
    WAW: "#f07fc0",
    reuse: "#766f8c",
    kernels: ["#8f7fb5", "#5f9f88", "#b87b8f", "#a39b56", "#5f949c", "#858d9c"],
    parts: { work: "#8fa3bf", wait: "#b08968", idle: "#5f5433", gap: "#4b5664", beside: "#98a4b3" },
    schedulers: ["#e6eaf0", "#98a4b3", "#d8b878"],
    patterns: {
      one_to_one: "#3f9f78",
      one_to_many: "#3f9f78",
      many_to_one: "#3f9f78",
      group: "#9cc94a",
      window: "#46c99c",
      row: "#7fe0bd",
      column: "#7fe0bd",
      strided: "#bfe07a",
      all_to_all: "#d2fbe9",
      irregular: "#98a4b3",
      independent: "#5c6675"
    }
  }
};
var DASHES = {
  one_to_many: [7, 3],
  many_to_one: [2, 3],
  column: [7, 3],
  irregular: [2, 2],
  independent: [1, 4]
};
var patternColour = (name) => INK.patterns[name] ?? INK.patterns.irregular;
var FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
var surfaces = [];
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  Object.assign(INK, PALETTE[name]);
  for (const surface of surfaces) surface.redraw();
}
var Surface = class {
  // `axes`: "both" zooms x and y together, "free" too but each axis may have its own scale, "x" zooms x (y with Shift),
  // "y" zooms y (x with Shift). `take(x, y)` may claim a drag that begins there, and then gets its moves.
  constructor(canvas, { axes, draw, hover, click, take, margin = { left: 0, top: 0 }, limits = [1e-4, 60] }) {
    Object.assign(this, { canvas, axes, draw, hover, click, take, margin, limits });
    this.context = canvas.getContext("2d");
    this.view = { x: 0, y: 0, kx: 1, ky: 1 };
    this.width = this.height = 0;
    this.touched = false;
    this.waiting = false;
    surfaces.push(this);
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    canvas.addEventListener("pointerdown", (e) => this.press(e));
    canvas.addEventListener("pointermove", (e) => this.move(e));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => this.fit?.());
  }
  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this, { width: box.width, height: box.height, ratio });
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    this.arrange?.();
    if (!this.touched) this.fit?.();
    this.redraw();
  }
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.width) return;
      const c = this.context;
      c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      this.draw(c);
      this.over?.(c);
    });
  }
  toScreen(x, y) {
    const { view: v, margin: m } = this;
    return [m.left + x * v.kx + v.x, m.top + y * v.ky + v.y];
  }
  toWorld(x, y) {
    const { view: v, margin: m } = this;
    return [(x - m.left - v.x) / v.kx, (y - m.top - v.y) / v.ky];
  }
  get plotWidth() {
    return Math.max(this.width - this.margin.left, 1);
  }
  get plotHeight() {
    return Math.max(this.height - this.margin.top, 1);
  }
  // Scales at which the content, `extent()` wide and high, fills a quarter of the view: zooming out ends there.
  smallest() {
    const [wide, high] = this.extent?.() ?? [Infinity, Infinity];
    const most = this.limits[1] / 4;
    return [Math.min(this.plotWidth / (4 * wide), most), Math.min(this.plotHeight / (4 * high), most)];
  }
  zoom(factor, sx = this.margin.left + this.plotWidth / 2, sy = this.margin.top + this.plotHeight / 2, vertical = false) {
    const [x, y] = this.toWorld(sx, sy);
    const [wide, high] = this.smallest();
    const clamp = (k, least) => Math.min(Math.max(k, this.limits[0], least), this.limits[1]);
    const v = this.view;
    if (this.axes === "both") v.kx = v.ky = clamp(v.kx * factor, Math.min(wide, high));
    else if (this.axes === "free") [v.kx, v.ky] = [clamp(v.kx * factor, wide), clamp(v.ky * factor, high)];
    else if (vertical !== (this.axes === "y"))
      v.ky = Math.min(
        Math.max(v.ky * factor, 0.01, this.axes === "y" ? high : 0),
        this.axes === "y" ? this.limits[1] : 200
      );
    else v.kx = clamp(v.kx * factor, wide);
    v.x = sx - this.margin.left - x * v.kx;
    v.y = sy - this.margin.top - y * v.ky;
    this.moved();
  }
  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.moved();
  }
  // Every change of the window ends here: `keep` lets a view hold its content in sight.
  moved() {
    this.touched = true;
    this.keep?.();
    this.redraw();
  }
  wheel(event) {
    event.preventDefault();
    const step = event.deltaMode === 1 ? 30 : 1;
    const turn = (Math.abs(event.deltaY) > Math.abs(event.deltaX) ? event.deltaY : event.deltaX) * step;
    const [x, y] = this.at(event);
    this.zoom(Math.exp(-Math.max(-240, Math.min(240, turn)) / 400), x, y, event.shiftKey);
  }
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
  press(event) {
    if (event.button !== 0) return;
    this.drag = {
      from: this.at(event),
      last: this.at(event),
      far: false,
      taken: Boolean(this.take?.(...this.at(event), false, event))
    };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.addEventListener(
      "pointerup",
      (e) => {
        const clicked = this.drag && !this.drag.far && !this.drag.taken;
        this.drag = null;
        if (clicked) this.click(...this.at(e), e);
      },
      { once: true }
    );
  }
  move(event) {
    const [x, y] = this.at(event);
    if (!this.drag) {
      this.pointer = [x, y, event.clientX, event.clientY];
      return this.hoverAgain();
    }
    if (this.drag.taken) return void this.take(x, y, true);
    const [fx, fy] = this.drag.from;
    if (Math.hypot(x - fx, y - fy) > 3) this.drag.far = true;
    if (!this.drag.far) return;
    showTip(null);
    this.pan(x - this.drag.last[0], y - this.drag.last[1]);
    this.drag.last = [x, y];
  }
  // What is under the pointer is told again: it moved, or more is known.
  hoverAgain() {
    if (!this.pointer) return;
    const [x, y, clientX, clientY] = this.pointer;
    showTip(this.hover(x, y), clientX, clientY);
  }
  leave() {
    this.pointer = null;
    showTip(null);
    this.hover(-1, -1);
  }
};
var tip = document.getElementById("tip");
function showTip(lines, x, y) {
  tip.hidden = !lines?.length;
  if (tip.hidden) return;
  tip.replaceChildren(...lines.map((line) => make("p", line)));
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width > innerWidth ? x - box.width - 10 : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16)}px`;
}
function make(tag, content = "", attributes = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (Array.isArray(content)) element.append(...content);
  else element.textContent = content;
  return element;
}
function patternMark(name) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "line");
  for (const [k, v] of Object.entries({ x1: 1, x2: 23, y1: 4, y2: 4, "stroke-width": 3 })) line.setAttribute(k, v);
  line.setAttribute("stroke", patternColour(name));
  line.setAttribute("stroke-dasharray", (DASHES[name] ?? []).join(" "));
  svg.setAttribute("viewBox", "0 0 24 8");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}
function fitted(c, string, width) {
  if (c.measureText(string).width <= width) return string;
  const end = string.match(/<[^<>]{1,16}>$/)?.[0] ?? "";
  const kept2 = c.measureText(`mmm…${end}`).width <= width ? end : "";
  let low = 0;
  for (let high = string.length - kept2.length; low < high; ) {
    const middle = low + high + 1 >> 1;
    if (c.measureText(`${string.slice(0, middle)}…${kept2}`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${string.slice(0, low)}…${kept2}` : "";
}
function icon(path) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "path");
  for (const [k, v] of Object.entries({
    d: path,
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.6,
    "stroke-linecap": "round"
  }))
    line.setAttribute(k, v);
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}
function niceStep(atLeast) {
  const ten = 10 ** Math.floor(Math.log10(atLeast));
  return [1, 2, 5, 10].map((m) => m * ten).find((s) => s >= atLeast);
}

// viz/scripts/data.js
if (!("DecompressionStream" in window)) {
  document.getElementById("command").textContent = "This page needs a browser of 2023 or later.";
}
var doc = JSON.parse(document.getElementById("data").textContent);
var HAZARDS = ["RAW", "WAR", "WAW"];
var TIMINGS = ["measured", "modelled"];
var COVERAGES = ["exact", "inferred", "conservative"];
var TYPES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
function fromBase64(data) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(data);
  const string = atob(data);
  const bytes = new Uint8Array(string.length);
  for (let i = 0; i < string.length; i++) bytes[i] = string.charCodeAt(i);
  return bytes;
}
async function inflate(packed) {
  const bytes = fromBase64(packed.data);
  const type = TYPES[packed.type];
  if (bytes.length === packed.n * type.BYTES_PER_ELEMENT) return new type(bytes.buffer);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new type(await new Response(stream).arrayBuffer());
}
async function unpack(packed) {
  const values = await inflate(packed);
  if (!packed.delta) return values;
  return summed(values, Int32Array) ?? summed(values, Float64Array);
}
function summed(values, type) {
  const whole = new type(values.length);
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    sum += values[i];
    whole[i] = sum;
    if (whole[i] !== sum) return null;
  }
  return whole;
}
async function unpackTable(table) {
  const entries = Object.entries(table).map(async ([name, value]) => [
    name,
    value !== null && typeof value === "object" && "data" in value ? await unpack(value) : value
  ]);
  return Object.fromEntries(await Promise.all(entries));
}
function keeper(tables, better = () => null, opened = unpackTable) {
  const kept2 = /* @__PURE__ */ new Map();
  return {
    ready: (i) => kept2.get(i)?.value,
    load(i) {
      if (!kept2.has(i)) {
        const entry = { value: void 0 };
        const own = opened(tables[i]).then((value) => entry.value ??= value);
        entry.promise = better(i)?.then(opened).then(
          (value) => entry.value = value,
          () => own
        ) ?? own;
        kept2.set(i, entry);
      }
      return kept2.get(i).promise;
    }
  };
}
async function unpackRelation({ bytes, last, first, ...shape }) {
  const block = await unpackTable(shape);
  let wanted2 = null;
  block.details = () => wanted2 ??= unpackTable(bytes ? { bytes, last, first } : {}).then((found2) => Object.assign(block, found2));
  return block;
}
var served = {};
var blocks = keeper(doc.blocks, (i) => doc.blocks[i].parent ? null : served.block?.(i), unpackRelation);
var laneTables = keeper(doc.lanes, (i) => doc.lanes[i].sm ? null : served.lanes?.(i));
var grids = keeper(doc.grids, (i) => doc.grids[i].x ? null : served.grid?.(i));
var boxTables = keeper(doc.boxes, (i) => doc.boxes[i].tile ? null : served.boxes?.(i));
var launches = await unpackTable(doc.launches);
var pairs = await unpackTable(doc.pairs);
var links = await unpackTable(doc.links);
var uses = await unpackTable(doc.uses);
var buffers = await unpackTable(doc.buffers);
var laneOf = await unpack(doc.lane_of);
var boxOf = Int32Array.from(await unpack(doc.box_of));
var gridOf = Int32Array.from(await unpack(doc.grid_of));
var launchCount = launches.tiles.length;
var pairCount = pairs.producer.length;
var text = (column, i) => doc.strings[column[i]];
var pairAt = /* @__PURE__ */ new Map();
for (let i = 0; i < pairCount; i++) pairAt.set(`${pairs.producer[i]},${pairs.consumer[i]}`, i);
var pairsOf = Array.from({ length: launchCount }, () => []);
for (let i = 0; i < pairCount; i++) {
  pairsOf[pairs.producer[i]].push(i);
  pairsOf[pairs.consumer[i]].push(i);
}
var linksOf = /* @__PURE__ */ new Map();
for (let i = 0; i < links.block.length; i++) {
  const key = `${links.producer[i]},${links.consumer[i]}`;
  if (!linksOf.has(key)) linksOf.set(key, []);
  linksOf.get(key).push(i);
}
var usesOf = Array.from({ length: launchCount }, () => []);
for (const [i, launch] of uses.launch.entries()) usesOf[launch].push(i);
var tileBase = new Float64Array(launchCount + 1);
for (let i = 0; i < launchCount; i++) tileBase[i + 1] = tileBase[i] + launches.tiles[i];
var timed = launches.duration_ns.some((ns) => ns > 0);
var hasLanes = (schedule) => "sm" in schedule.lanes || "share" in schedule.lanes;
var number = (n) => Math.round(n).toLocaleString("en-US");
var short = (n) => Number(n.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 2 });
function duration(ns) {
  if (ns >= 1e9) return `${short(ns / 1e9)} s`;
  if (ns >= 1e6) return `${short(ns / 1e6)} ms`;
  return ns >= 1e3 ? `${short(ns / 1e3)} us` : `${short(ns)} ns`;
}
function tickTime(ns, step, largest) {
  const [unit, word] = largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "us"] : [1, "ns"];
  return `${(ns / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)))} ${word}`;
}
function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1e3;
  return `${short(bytes)} ${units[unit]}`;
}
var compact = (n) => n < 1e5 ? number(n) : n < 1e6 ? `${short(n / 1e3)} k` : n < 1e9 ? `${short(n / 1e6)} M` : `${short(n / 1e9)} G`;
var plural = (n, word, many = `${word}s`) => `${number(n)} ${n === 1 ? word : many}`;
var grid = (i) => [launches.grid_x[i], launches.grid_y[i], launches.grid_z[i]];
var times = (three) => three.join("×");
var deviceSlots = (i) => launches.slots?.[i] ?? doc.summary.sms * Math.max(launches.blocks_per_sm[i], 1);
var waves = (i) => launches.tiles[i] / deviceSlots(i);
var wavesWords = (i) => waves(i) < 0.01 && waves(i) > 0 ? "< 0.01" : short(waves(i));
function shortName(name) {
  const plain = name.replaceAll("(anonymous namespace)::", "");
  let [depth, open, word, scope] = [0, -1, 0, 0];
  for (let k = 0; k < plain.length && open < 0; k++) {
    if (plain[k] === "<") depth++;
    else if (plain[k] === ">") depth = Math.max(depth - 1, 0);
    else if (depth) continue;
    else if (plain[k] === "(") open = k;
    else if (plain[k] === " ") word = k + 1;
    else if (plain[k] === ":") scope = k + 1;
  }
  if (open >= 0 && plain.endsWith(")")) return plain.slice(Math.max(word, scope), open) || name;
  return open < 0 && !word ? plain.slice(scope) || name : name;
}
var shortNames = /* @__PURE__ */ new Map();
function shortKernel(i) {
  const place2 = launches.kernel[i];
  if (!shortNames.has(place2)) shortNames.set(place2, shortName(doc.strings[place2]));
  return shortNames.get(place2) || text(launches.op, i) || `launch ${i}`;
}
var shortModule = (i) => text(launches.module, i).split(".").slice(-3).join(".");
function coordinates(launch, tile) {
  const table = grids.ready(gridOf[launch]);
  return table?.x ? `(${table.x[tile]}, ${table.y[tile]}, ${table.z[tile]})` : "";
}
var shortOp = (i) => text(launches.op, i).split("+").map((op) => op.replace(/^.*::/, "").replace(/\..*$/, "")).join("+");
var launchName = (i) => shortOp(i) || shortKernel(i);
var launchPlace = (i) => [shortModule(i), shortOp(i) && shortKernel(i)].filter(Boolean).join(" · ");
var loadBoxes = (launch) => boxOf[launch] < 0 ? Promise.resolve() : boxTables.load(boxOf[launch]);
var loadGrid = (launch) => gridOf[launch] < 0 ? Promise.resolve() : grids.load(gridOf[launch]);

// viz/scripts/glossary.js
var ABOUT = {
  stream: "one launch after the other, each with a launch gap",
  graph: "the launches of each stream in one CUDA graph: shorter gaps",
  pdl: "programmatic dependent launch: the next launch's tiles are on the SMs early and wait for the whole launch",
  streams: "independent launches in several streams",
  "acs-sw": "ACS in software: a window of launches, independent ones together",
  "acs-hw": "ACS in hardware: a window of launches, independent ones together",
  cusync: "cuSync: tiles wait for tiles through semaphores",
  dataflow: "each tile is dispatched when the tiles it needs have ended",
  list: "greedy, free launches: a tile is dispatched when its parents have ended",
  persistent: "one kernel for the whole program, whose workers have static lists of tiles",
  "persistent-dynamic": "one kernel for the whole program, whose tiles are assigned on the GPU",
  inline: "a persistent kernel whose workers run the tiles that they have made ready, or spawn grids for them",
  ccks: "CCKS: a persistent kernel whose tiles the CPU assigns",
  blockmaestro: "BlockMaestro: kernels launched early, whose blocks a hardware scheduler delays",
  wireframe: "Wireframe: a task graph in hardware with room for some of its nodes",
  "dataflow-bloom": "dataflow, its dependencies kept in a Bloom filter"
};
var WORDS = {
  tightness: "edges of the pair over the edges of the smallest boxes around each tile's parents: 1 where the parents are boxes",
  "start early": "share of the consumer's tiles whose producers all end before the producer launch does, in stream order",
  "one wave": "the producer's tiles run side by side and end together: no consumer tile can start early, and what overlap gains is the launch gap and the slots that the wave leaves idle",
  "gain each": "recorded time of two launches and the gap between them, minus the bound on both; for one copy",
  "gain in all": "the same for all copies of a repeated layer together",
  exact: "every byte that a tile touches was observed or follows from the kernel",
  inferred: "derived from other accesses, not observed",
  conservative: "a superset: the exact accesses of the kernel are unknown, so that some dependencies may not exist",
  wave: "as many tiles as the GPU holds at a time; the last wave of a launch is often partly empty",
  slot: "room for one tile on an SM",
  bound: "no schedule is faster, under the assumptions that tileprof report prints",
  "list schedule": ABOUT.list,
  "poll (poll_ns)": "time from a tile's post to the tile that polls for it",
  "post (post_ns)": "time that a tile needs to post that it has ended, and to check its first semaphore",
  inside: "where a tile waits for its parents: 0: at its entry; 1: where their bytes are needed; 2: the faster of both"
};
var SETS = {
  accesses: ["exact", "inferred", "conservative"],
  pairs: ["start early", "one wave", "gain each", "gain in all"],
  pair: ["tightness", "start early", "one wave", "conservative"],
  schedulers: ["bound", "slot", "wave", ...Object.keys(ABOUT)],
  options: ["post (post_ns)", "poll (poll_ns)", "inside", "list schedule"]
};
var meaning = (word) => WORDS[word] ?? ABOUT[word];
function info(set) {
  const words = SETS[set];
  const title = `${words[0]}: ${meaning(words[0])}`;
  const button = make("button", [icon("M7 6.5v4M7 3.6v.2M7 1a6 6 0 1 0 .01 0z")], {
    type: "button",
    class: "info",
    title,
    "aria-label": `What these words mean: ${words.slice(0, 3).join(", ")}`
  });
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    showWords("Words", wordList(words));
  });
  return button;
}
var allWords = () => wordList([...Object.keys(WORDS), ...Object.keys(ABOUT)]);
var wordList = (words) => make(
  "dl",
  words.flatMap((word) => [make("dt", word), make("dd", meaning(word))]),
  { class: "words" }
);
function showWords(title, content, dialog = document.getElementById("words")) {
  const close = make("button", "Close", { type: "button" });
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(make("h2", title), content, close);
  dialog.showModal();
}

// viz/scripts/tabs/gain.js
var ROWS_BESIDE = 380;
var PARTS = {
  work_ns: ["work", "tiles at work", "the tiles' time, were all slots always full"],
  wait_ns: ["wait", "tiles that wait", "slots held by tiles that wait or signal"],
  idle_ns: ["idle", "empty slots", "slots empty while some tile runs: partial waves, uneven tiles"],
  gap_ns: ["gap", "no tile runs", "gaps between launches"]
};
function svgOf(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
function stackedBar(pieces, from, marks, longest2) {
  const svg = svgOf("svg", { viewBox: "0 0 1000 17", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = from;
  for (const [part, ns] of pieces) {
    svg.append(
      svgOf("rect", {
        x: 1e3 * x / longest2,
        y: 2,
        width: Math.max(1e3 * ns / longest2, 0),
        height: 13,
        fill: INK.parts[part] ?? part
      })
    );
    x += ns;
  }
  for (const ns of marks)
    svg.append(
      svgOf("line", {
        x1: 1e3 * ns / longest2,
        x2: 1e3 * ns / longest2,
        y1: 0,
        y2: 17,
        stroke: INK.ink,
        "stroke-width": 1.5,
        "vector-effect": "non-scaling-stroke",
        "stroke-dasharray": "3 2"
      })
    );
  return svg;
}
function showGain() {
  if (state.tab !== "gain") return;
  const box = document.getElementById("gains");
  const says = document.getElementById("gain-says");
  if (!("recorded_ns" in doc.gain) || !(doc.gain.recorded_ns > 0)) {
    says.textContent = "";
    return box.replaceChildren(make("p", noGain()));
  }
  const g = doc.gain;
  const listed = g.listed_ns ? ` · list schedule ${duration(g.listed_ns)}` : "";
  says.textContent = `bound ${duration(g.bound_ns)} (${g.binding})${listed} · recorded ${duration(g.recorded_ns)}`;
  const ran2 = doc.schedules.filter((s) => s.time_ns !== null);
  const { svg, longest: longest2 } = bracketPicture(g, ran2);
  const stream = g.stream_ns ?? ran2.find((s) => s.name === "stream")?.time_ns;
  const against = stream ?? g.recorded_ns;
  const base = stream ? `simulated stream order, ${duration(stream)}` : `the recorded ${duration(g.recorded_ns)}`;
  const caption = `% is against ${base}`;
  const chosen = ran2.find((s) => s.name === state.beside);
  box.replaceChildren(
    make("div", [make("span", "all of them"), make("span", [svg]), make("span"), make("span")], {
      class: "rows",
      id: "bracket"
    }),
    gainKey(),
    make("h3", "Where the recorded time goes (% of it)"),
    make("div", waterfall("recorded", g.recorded_ns, recordedSteps(g), g, longest2), { class: "rows", id: "waterfall" }),
    ...chosen ? [
      make("h3", `Where the time of ${chosen.name} goes (% of it)`),
      make("div", waterfall(chosen.name, chosen.time_ns, simulatedSteps(chosen), g, longest2), {
        class: "rows",
        id: "waterfall-beside"
      })
    ] : [],
    make("h3", [
      document.createTextNode(
        doc.schedules.length ? "Schedulers, simulated; choose one to see it in the timeline " : "Bounds "
      ),
      info("schedulers")
    ]),
    make("p", caption, { class: "caption", id: "against" }),
    make(
      "div",
      [
        ...doc.schedules.flatMap((s) => scheduleRow(s, g, longest2, against)),
        ...recordedRow(g, longest2, against),
        ...boundRows(g, longest2, against)
      ],
      { class: "rows", id: "schedulers" }
    ),
    ...doc.skipped.length ? [
      make("p", `Too large to simulate here: ${doc.skipped.join(", ")}. tileprof simulate runs them.`, {
        class: "caption",
        id: "skipped"
      })
    ] : [],
    ...doc.policy && !doc.policy.refused ? policyRows(doc.policy) : [],
    ...served.runner ? [make("h3", "Another scheduler, or other options"), served.runner()] : []
  );
}
function noGain() {
  if (!launchCount) return "This trace holds no launches: there is nothing to gain.";
  if (doc.summary.dependencies_known === false) {
    return "The trace holds no accesses: dependencies between launches and gains are unknown.";
  }
  return timed ? "This page was made without bounds." : "This trace holds no times, so gains cannot be computed.";
}
function bracketPicture(g, ran2) {
  const [left, middle, line] = [1, 44, 12];
  const width = Math.max(document.getElementById("gains").clientWidth - ROWS_BESIDE, 240);
  const longest2 = Math.max(g.recorded_ns, ...ran2.map((s) => s.time_ns));
  const reached = g.listed_ns && !ran2.some((s) => s.name === "list") ? [...ran2, { name: "list", time_ns: g.listed_ns }] : [...ran2];
  const labels = bracketLabels(reached, longest2);
  const scale = Math.min((width - 2 * left) / longest2, ...labels.map((l) => (width - left - l.wide) / l.ns));
  const x = (ns) => left + scale * ns;
  const rows = placeLabels(labels, x);
  const height = middle + 18 + line * rows;
  const svg = svgOf("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `No schedule is faster than ${duration(g.bound_ns)}; recorded were ${duration(g.recorded_ns)}`
  });
  const bar = (from, to, fill2, title) => {
    const part = svgOf("rect", { x: x(from), y: middle - 6, width: Math.max(x(to) - x(from), 0), height: 12, fill: fill2 });
    part.append(Object.assign(svgOf("title", {}), { textContent: title }));
    svg.append(part);
  };
  const best = Math.min(g.recorded_ns, g.listed_ns ?? Infinity, ...ran2.map((s) => s.time_ns));
  bar(0, g.bound_ns, INK.muted, "no schedule is as fast");
  bar(g.bound_ns, best, INK.parts.idle, "the best schedule ends in here");
  bar(best, longest2, INK.idle, "reached by a simulated schedule or by the recording");
  const say = (words, at, y, anchor, name) => svg.append(
    Object.assign(svgOf("text", { x: at, y, "text-anchor": anchor, ...name && { class: name } }), {
      textContent: words
    })
  );
  for (const [words, ns] of [
    [`bound ${duration(g.bound_ns)}`, g.bound_ns],
    [`recorded ${duration(g.recorded_ns)}`, g.recorded_ns]
  ]) {
    svg.append(
      svgOf("line", { x1: x(ns), x2: x(ns), y1: middle - 16, y2: middle + 8, stroke: INK.ink, "stroke-width": 2 })
    );
    const near = ns === g.bound_ns && x(g.recorded_ns) - x(g.bound_ns) < 150;
    say(words, x(ns), middle - 20 - (near ? line : 0), x(ns) < 60 ? "start" : x(ns) > width - 60 ? "end" : "middle");
  }
  for (const { names, ns, row: row2 } of labels) {
    const chosen = names.includes(state.beside);
    svg.append(
      svgOf("path", {
        d: `M${x(ns)} ${middle - 9}V${middle + 14 + line * row2}h4`,
        fill: "none",
        stroke: chosen ? INK.focus : INK.parts.beside,
        "stroke-width": chosen ? 3 : 1
      })
    );
    say(names.join(", "), x(ns) + 6, middle + 18 + line * row2, "start", "soft");
  }
  return { svg, longest: width / scale };
}
function bracketLabels(reached, longest2) {
  const labels = [];
  for (const s of reached.sort((a, b) => a.time_ns - b.time_ns)) {
    const last = labels.at(-1);
    if (last && s.time_ns - last.ns < 8e-3 * longest2 && last.names.join(", ").length < 40) last.names.push(s.name);
    else labels.push({ names: [s.name], ns: s.time_ns });
  }
  return labels.map((l) => ({ ...l, wide: 6.2 * l.names.join(", ").length + 10 }));
}
function placeLabels(labels, x) {
  for (let k = labels.length - 1; k >= 0; k--) {
    const end = x(labels[k].ns) + labels[k].wide;
    labels[k].row = 1 + Math.max(
      -1,
      ...labels.slice(k + 1).filter((l) => x(l.ns) < end).map((l) => l.row)
    );
  }
  return Math.max(0, ...labels.map((l) => l.row)) + 1;
}
function recordedSteps(g) {
  const steps = [[gapWords(), "gap", g.gap_ns, "time between launches in which nothing runs"]];
  if (g.beside_ns > 5e-3 * g.recorded_ns)
    steps.push([
      "launches beside their tiles",
      "beside",
      g.beside_ns,
      "recorded time of launches that their tiles' times do not explain"
    ]);
  return [
    ...steps,
    ["waves partly full", "idle", g.idle_ns, "slot-time without a tile while launches run, each alone on the GPU"],
    ["tiles at work", "work", g.work_ns, PARTS.work_ns[2]]
  ];
}
var simulatedSteps = (s) => ["gap_ns", "idle_ns", "wait_ns", "work_ns"].map((key) => [PARTS[key][1], PARTS[key][0], s[key], PARTS[key][2]]);
function waterfall(name, total, steps, g, longest2) {
  const rows = [row(name, [["beside", total]], 0, g, longest2, { of: total })];
  let end = total;
  for (const [words2, part2, ns, title2] of steps.slice(0, -1)) {
    if (Math.abs(ns) < 5e-4 * total) continue;
    end -= ns;
    rows.push(row(`− ${words2}`, [[part2, ns]], Math.max(end, 0), g, longest2, { title: title2, minus: true, of: total }));
  }
  const [words, part, work, title] = steps.at(-1);
  rows.push(row(`= ${words}`, [[part, work]], 0, g, longest2, { title, of: total }));
  const over = steps.reduce((sum, s) => sum + s[2], 0) - total;
  if (over > 0.01 * total)
    rows.splice(-1, 0, [
      make("span", "minus time that counts twice"),
      make("span", g.beside_ns < 0 ? "tiles were timed in a slower run than their launches" : "launches overlapped", {
        class: "soft"
      }),
      make("span", duration(over), { class: "number" }),
      make("span", "")
    ]);
  return rows.flat();
}
function row(name, pieces, from, g, longest2, { of, title = "", minus = false }) {
  const ns = pieces.reduce((sum, p) => sum + p[1], 0);
  const share2 = of > 0 ? `${Math.round(100 * ns / of)}%` : "";
  return [
    make("span", name, { title }),
    make("span", [stackedBar(pieces, from, [g.bound_ns], longest2)], { title }),
    make("span", (minus ? "−" : "") + duration(ns), { class: "number" }),
    make("span", share2, { class: "number soft" })
  ];
}
function recordedRow(g, longest2, against) {
  const idle = Math.min(g.quiet_ns || g.gap_ns, g.recorded_ns);
  const title = `as recorded; ${duration(idle)} of it between launches, while nothing runs`;
  return [
    make("span", `recorded (idle ${duration(idle)})`, { title }),
    make(
      "span",
      [
        stackedBar(
          [
            ["gap", idle],
            ["beside", g.recorded_ns - idle]
          ],
          0,
          [g.bound_ns],
          longest2
        )
      ],
      { title }
    ),
    make("span", duration(g.recorded_ns), { class: "number" }),
    make("span", signedShare(g.recorded_ns / against - 1), { class: "number soft" })
  ];
}
var gapWords = () => doc.summary.timing.measured > 0 ? "idle between launches" : "launch gaps";
function scheduleRow(s, g, longest2, against) {
  const pieces = Object.entries(PARTS).filter(([key]) => s[key] > 0).map(([key, [part]]) => [part, s[key]]);
  const told = [
    ABOUT[s.name] ?? "",
    ...Object.entries(PARTS).filter(([key]) => s[key] > 0).map(([key, [, , words]]) => `${duration(s[key])}: ${words}`)
  ].filter(Boolean).join("\n");
  const button = make("button", s.name, {
    type: "button",
    title: ABOUT[s.name] ?? s.name,
    "aria-pressed": String(state.beside === s.name)
  });
  button.disabled = !hasLanes(s);
  button.addEventListener("click", () => chooseBeside(state.beside === s.name ? "" : s.name));
  if (s.time_ns === null)
    return [
      button,
      make("span", `deadlock: ${s.deadlock}`, { title: s.deadlock }),
      make("span", "∞", { class: "number" }),
      make("span", "")
    ];
  return [
    button,
    make("span", [stackedBar(pieces, 0, [g.bound_ns], longest2)], { title: told }),
    make("span", duration(s.time_ns), { class: "number" }),
    make("span", signedShare(s.time_ns / against - 1), { class: "number soft" })
  ];
}
var signedShare = (share2) => Math.abs(share2) < 5e-3 ? "±0%" : `${share2 < 0 ? "−" : "+"}${Math.round(100 * Math.abs(share2))}%`;
function boundRows(g, longest2, against) {
  const rows = [
    [`bound: ${g.binding}`, g.bound_ns, "no schedule is faster, under the assumptions that `tileprof report` prints"]
  ];
  if (g.ready_ns > g.bound_ns * 1.001)
    rows.push([
      "bound, ready-gated",
      g.ready_ns,
      "no schedule that dispatches a tile only when its parents have ended is faster"
    ]);
  return rows.flatMap(([name, ns, title]) => [
    make("span", name, { title }),
    make("span", [stackedBar([[INK.muted, ns]], 0, [g.bound_ns], longest2)], { title }),
    make("span", `≥ ${duration(ns)}`, { class: "number" }),
    make("span", signedShare(ns / against - 1), { class: "number soft" })
  ]);
}
function policyRows(p) {
  const words = `${p.name}: its launches alone, predicted${p.sound ? "" : " (but the policy is unsound)"}`;
  const rows = [
    ["one after the other", "beside", p.stream_ns],
    ["under the policy", "work", p.policy_ns]
  ].flatMap(([name, part, ns]) => [
    make("span", name),
    make("span", [stackedBar([[part, ns]], 0, [], Math.max(p.stream_ns, p.policy_ns))]),
    make("span", duration(ns), { class: "number" }),
    make("span", signedShare(ns / p.stream_ns - 1), { class: "number soft" })
  ]);
  return [make("h3", words), make("div", rows, { class: "rows", id: "policy-gain" })];
}
function gainKey() {
  const marks = Object.values(PARTS).map(([part, words, title]) => {
    const dot = make("i", "", { class: "dot" });
    dot.style.background = INK.parts[part];
    return make("span", [dot, document.createTextNode(words)], { title });
  });
  return make("div", [...marks, make("span", "┆ bound", { title: "no schedule is faster" })], { class: "key" });
}
function chooseBeside(name) {
  served.problem = "";
  state.beside = name;
  changed();
}

// viz/scripts/tabs/what_if.js
var whatIf = { scheduler: "", options: {}, sms: doc.summary.sms, occupancy: 0, moved: "sms", problem: "" };
var IN_SIZES = { stream: "stream_ns", graph: "graph_ns", list: "list_ns" };
var LINES = {
  stream: ["stream order", 1, []],
  graph: ["in a CUDA graph", 1, [7, 3]],
  list: ["list schedule, free launches", 2, [2, 3]]
};
var UNKNOWN_BLOCKS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 32];
var ran = /* @__PURE__ */ new Map();
var optionWords = (options) => Object.entries(options).map(([key, value]) => `${key}=${value}`).join(",");
var runKey = ({ scheduler, options, sms, occupancy }) => `${scheduler}${optionWords(options) && ":"}${optionWords(options)}@${sms},${occupancy}`;
for (const s of doc.schedules) ran.set(`${s.name}@${doc.summary.sms},0`, s.time_ns);
for (const [name, key, value, sms, occupancy, ns] of doc.variants)
  ran.set(runKey({ scheduler: name, options: key ? { [key]: value } : {}, sms, occupancy }), ns);
function learnSize(s) {
  for (const [name, column] of Object.entries(IN_SIZES)) {
    if (s[column] !== null) ran.set(`${name}@${s.sms},${s.occupancy}`, s[column]);
  }
}
for (const s of doc.sizes) learnSize(s);
var knobsOf = (name) => (Object.hasOwn(doc.knobs, name ?? "") ? doc.knobs[name] : []).map(([key, meaning2, given, values]) => ({
  key,
  meaning: meaning2,
  given,
  values
}));
var runnable = () => Object.keys(doc.knobs).filter((name) => served.variant || ran.has(`${name}@${doc.summary.sms},0`));
function slidersNow() {
  const sms = [.../* @__PURE__ */ new Set([doc.summary.sms, ...[...ran.keys()].map((key) => Number(key.match(/@(\d+),/)[1]))])].sort(
    (a, b) => a - b
  );
  const sliders = [
    {
      key: "sms",
      label: "SMs",
      values: served.variant ? Array.from({ length: 2 * doc.summary.sms }, (_, i) => i + 1) : sms,
      given: doc.summary.sms,
      words: String
    },
    {
      key: "occupancy",
      label: "blocks per SM",
      meaning: "resident blocks per SM",
      values: UNKNOWN_BLOCKS,
      given: 0,
      words: (n) => n ? plural(n, "block") : "as recorded"
    },
    ...knobsOf(whatIf.scheduler).map((k) => ({
      ...k,
      label: k.key.replace(/_ns$/, "").replaceAll("_", " "),
      words: (v) => knobWords(k.key, v)
    }))
  ];
  return sliders.map((s) => ({
    ...s,
    values: s.values.filter((v) => served.variant || v === s.given || ran.has(runKey(moved(s, v, recordedSetting()))))
  }));
}
var knobWords = (key, value) => value === null ? "the device's" : key.endsWith("_ns") ? duration(value) : number(value) === String(value) || Number.isInteger(value) ? number(value) : short(value);
var recordedSetting = () => ({ scheduler: whatIf.scheduler, options: {}, sms: doc.summary.sms, occupancy: 0 });
function moved({ key, given }, value, setting) {
  if (key in { sms: 0, occupancy: 0 }) return { ...setting, [key]: value };
  const options = { ...setting.options };
  delete options[key];
  return {
    ...setting,
    options: value === given ? options : Object.fromEntries(Object.entries({ ...options, [key]: value }).sort())
  };
}
var settingOf = ({ key, given }) => key in { sms: 0, occupancy: 0 } ? whatIf[key] : whatIf.options[key] ?? given;
function moveSlider(slider, value) {
  const wanted2 = moved(slider, value, whatIf);
  const alone = moved(slider, value, recordedSetting());
  Object.assign(whatIf, served.variant || ran.has(runKey(wanted2)) ? wanted2 : alone, { moved: slider.key, problem: "" });
  writeHash();
  showSizes();
}
var asking = false;
async function askForRun() {
  if (asking) return;
  asking = true;
  const wanted2 = () => [runKey(whatIf), runKey(recordedSetting())].find((key) => !ran.has(key));
  try {
    for (let key = wanted2(); key && !whatIf.problem; key = wanted2()) {
      try {
        const [answer, size2] = await Promise.all([served.variant(key), served.size(key.split("@")[1])]);
        learnSize(size2);
        ran.set(key, answer.time_ns);
      } catch (error) {
        whatIf.problem = error.message;
      }
      showSizes();
    }
  } finally {
    asking = false;
  }
}
function showSizes() {
  if (state.tab !== "sizes") return;
  const box = document.getElementById("what-if");
  const says = document.getElementById("sizes-says");
  const names = runnable();
  if (!timed || !names.length) {
    says.textContent = "";
    return box.replaceChildren(
      make(
        "p",
        timed ? "This page holds no simulations: it was made with --quick, or the program is too large for one. `tileprof view --serve` simulates whatever is asked for." : `This trace holds no ${launchCount ? "times" : "launches"}.`
      )
    );
  }
  if (!names.includes(whatIf.scheduler))
    Object.assign(whatIf, { scheduler: names.includes("cusync") ? "cusync" : names[0], options: {} });
  const sliders = slidersNow().filter((s) => s.values.length > 1);
  if (!sliders.some((s) => s.key === whatIf.moved)) whatIf.moved = sliders[0]?.key ?? "";
  says.textContent = served.variant ? "tile times as recorded, whatever runs beside them" : sliders.length ? "in a file, SMs and blocks per SM vary together and options one at a time; --serve combines them all" : "too large a program for sliders in a file; --serve has them";
  const kind = [whatIf.scheduler, ...sliders.map((s) => s.key)].join();
  if (box.dataset.kind !== kind) {
    box.dataset.kind = kind;
    box.replaceChildren(
      schedulerChoice(names),
      make("div", sliders.flatMap(sliderOf), { class: "sliders" }),
      make("div", "", { id: "what-comes" })
    );
  }
  for (const slider of sliders) {
    const [input, now] = [document.getElementById(`slide-${slider.key}`), settingOf(slider)];
    input.value = slider.values.indexOf(now);
    input.setAttribute("aria-valuetext", slider.words(now));
    input.nextElementSibling.textContent = slider.words(now);
  }
  document.getElementById("as-recorded").disabled = runKey(whatIf) === runKey(recordedSetting());
  const show = box.querySelector("form button");
  if (show) show.disabled = whatIf.sms !== doc.summary.sms || whatIf.occupancy !== 0;
  const plotted = sliders.find((s) => s.key === whatIf.moved);
  document.getElementById("what-comes").replaceChildren(readout(), ...plotted ? [settingPlot(plotted)] : []);
  if (served.variant) askForRun();
}
function schedulerChoice(names) {
  const choice = make(
    "select",
    names.map((name) => make("option", name, { value: name })),
    { id: "try" }
  );
  choice.value = whatIf.scheduler;
  choice.addEventListener("change", () => {
    Object.assign(whatIf, { ...recordedSetting(), scheduler: choice.value, problem: "" });
    writeHash();
    showSizes();
    document.getElementById("try").focus();
  });
  const parts = [
    make("label", [document.createTextNode("scheduler "), choice]),
    info("options"),
    make("span", ABOUT[whatIf.scheduler] ?? "", { class: "soft" })
  ];
  const back = make("button", "As recorded", {
    type: "button",
    id: "as-recorded",
    title: "The recorded GPU, and the scheduler's own options"
  });
  back.addEventListener("click", () => {
    Object.assign(whatIf, recordedSetting(), { problem: "" });
    writeHash();
    showSizes();
  });
  parts.push(back);
  if (served.show) parts.push(served.show());
  return make("div", parts, { class: "line" });
}
function sliderOf(slider) {
  const { key, label, meaning: meaning2, values } = slider;
  const title = meaning2 ? { title: meaning2 } : {};
  const input = make("input", "", {
    type: "range",
    min: 0,
    max: values.length - 1,
    step: 1,
    id: `slide-${key}`,
    ...title
  });
  input.addEventListener("input", () => moveSlider(slider, values[input.value]));
  return [
    make("label", label, { for: `slide-${key}`, ...title }),
    input,
    make("output", "", { for: `slide-${key}`, ...title })
  ];
}
function readSetting(words) {
  const [, name, options, sms, occupancy] = words.match(/^([\w-]+)(?::([^@]*))?@(\d{1,5}),(\d{1,5})$/) ?? [];
  const keys = knobsOf(name).map((k) => k.key);
  const given = (options ?? "").split(",").filter(Boolean).map((o) => o.split("="));
  if (!Object.hasOwn(doc.knobs, name ?? "") || !given.every(([key, value]) => keys.includes(key) && Number.isFinite(Number(value))))
    return;
  const setting = {
    scheduler: name,
    options: Object.fromEntries(given.map(([key, value]) => [key, Number(value)])),
    sms: Number(sms),
    occupancy: Number(occupancy)
  };
  if (!ran.has(runKey(setting)) && !served.variant) return;
  Object.assign(whatIf, setting, { problem: "" });
}
var settingWords = () => whatIf.scheduler && (state.tab === "sizes" || runKey(whatIf) !== runKey(recordedSetting())) ? runKey(whatIf) : "";
function readout() {
  const name = whatIf.scheduler;
  const at = { sms: whatIf.sms, occupancy: whatIf.occupancy, options: {} };
  const others = Object.keys(LINES).filter(
    (other) => other !== name && Number.isFinite(ran.get(runKey({ ...at, scheduler: other })))
  );
  const rows = [
    [name, runKey(whatIf), `${name}@${doc.summary.sms},0`, INK.schedulers[0]],
    ...others.map((other) => [
      LINES[other][0],
      runKey({ ...at, scheduler: other }),
      `${other}@${doc.summary.sms},0`,
      INK.schedulers[LINES[other][1]]
    ])
  ];
  const longest2 = Math.max(...rows.flatMap(([, key, base]) => [ran.get(key) ?? 0, ran.get(base) ?? 0]), 1);
  return make("div", [
    make(
      "div",
      rows.flatMap(([label, key, base, colour]) => timeRow(label, ran.get(key), ran.get(base), colour, longest2)),
      { class: "rows", id: "size-rows" }
    ),
    make("p", "% and ┆: against the same scheduler with its own options on the recorded GPU", { class: "caption" }),
    ...whatIf.problem ? [make("p", whatIf.problem, { class: "caption", role: "status" })] : []
  ]);
}
function timeRow(label, ns, base, colour, longest2) {
  if (!Number.isFinite(ns)) {
    const words = ns === null ? "deadlock" : whatIf.problem || "…";
    return [
      make("span", label),
      make("span", words, { title: words, role: "status" }),
      make("span", ns === null ? "∞" : "", { class: "number" }),
      make("span", "")
    ];
  }
  return [
    make("span", label),
    make("span", [stackedBar([[colour, ns]], 0, Number.isFinite(base) ? [base] : [], longest2)], {
      title: `┆ as recorded: ${Number.isFinite(base) ? duration(base) : "not known"}`
    }),
    make("span", duration(ns), { class: "number" }),
    make("span", Number.isFinite(base) ? signedShare(ns / base - 1) : "", {
      class: "number soft",
      title: "against the recorded GPU and the scheduler's own options"
    })
  ];
}
function settingPlot(slider) {
  const lines = {
    ...slider.key === "sms" || slider.key === "occupancy" ? LINES : {},
    [whatIf.scheduler]: [whatIf.scheduler, 0, []]
  };
  const timeAt2 = (name, value) => ran.get(
    runKey(
      name === whatIf.scheduler ? moved(slider, value, whatIf) : { ...moved(slider, value, { ...whatIf, options: {} }), scheduler: name }
    )
  );
  const curves = Object.entries(lines).map(([name, look]) => [
    look,
    slider.values.map((value) => [value, timeAt2(name, value)]).filter(([, ns]) => Number.isFinite(ns))
  ]).filter(([, points]) => points.length);
  const [left, right, top, bottom, width, height] = [56, 700, 10, 130, 720, 160];
  const most = Math.max(...curves.flatMap(([, points]) => points.map((p) => p[1])), 1) * 1.05;
  const scaled = slider.key === "sms" ? (v) => (v - slider.values[0]) / Math.max(slider.values.at(-1) - slider.values[0], 1) : (v) => slider.values.indexOf(v) / Math.max(slider.values.length - 1, 1);
  const x = (v) => left + 14 + (right - left - 28) * scaled(v);
  const y = (ns) => bottom - (bottom - top) * ns / most;
  const svg = svgOf("svg", {
    class: "plot",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `Time over ${slider.label}`
  });
  const say = (words, at, to, anchor) => svg.append(Object.assign(svgOf("text", { x: at, y: to, "text-anchor": anchor }), { textContent: words }));
  const step = niceStep(most / 4);
  for (let ns = 0; ns <= most; ns += step) {
    svg.append(svgOf("line", { x1: left, x2: right, y1: y(ns), y2: y(ns), stroke: INK.line }));
    say(tickTime(ns, step, most), left - 6, y(ns) + 4, "end");
  }
  const ticks = slider.values.length > 12 ? slider.values.filter((v) => v % (Math.ceil(slider.values.length / 80) * 10) === 0) : slider.values;
  for (const v of ticks) say(slider.words(v), x(v), bottom + 15, "middle");
  say(slider.meaning ?? slider.label, right, bottom + 29, "end");
  const now = settingOf(slider);
  svg.append(svgOf("line", { x1: x(now), x2: x(now), y1: top, y2: bottom, stroke: INK.focus }));
  for (const [[, colour, dash], points] of curves) {
    svg.append(
      svgOf("polyline", {
        points: points.map(([v, ns]) => `${x(v)},${y(ns)}`).join(" "),
        fill: "none",
        stroke: INK.schedulers[colour],
        "stroke-width": 2,
        "stroke-dasharray": dash.join(" ")
      })
    );
    for (const [v, ns] of points)
      svg.append(svgOf("circle", { cx: x(v), cy: y(ns), r: v === now ? 4.5 : 2.5, fill: INK.schedulers[colour] }));
  }
  return make("div", [
    svg,
    make(
      "div",
      curves.map(([look]) => lineMark(...look)),
      { class: "key" }
    )
  ]);
}
function lineMark(name, colour, dash) {
  const svg = svgOf("svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" });
  svg.append(
    svgOf("line", {
      x1: 1,
      x2: 23,
      y1: 4,
      y2: 4,
      stroke: INK.schedulers[colour],
      "stroke-width": 3,
      "stroke-dasharray": dash.join(" ")
    })
  );
  return make("span", [svg, document.createTextNode(name)]);
}

// viz/scripts/state.js
var TABS = { matrix: "Pairs", tiles: "Tile graph", tensor: "Tensor", gain: "Gain", sizes: "What if" };
var state = {
  launch: null,
  pair: null,
  chain: null,
  tile: null,
  copies: {},
  open: /* @__PURE__ */ new Set(),
  search: "",
  tab: "matrix",
  beside: "",
  time: null
};
var watchers = [];
var watch = (watcher) => watchers.push(watcher);
function select(change) {
  const next = { launch: null, pair: null, chain: null, tile: null, ...change };
  if (next.pair && !["matrix", "tiles", "tensor"].includes(state.tab)) state.tab = "matrix";
  if (next.pair && next.launch === null)
    next.launch = state.launch !== null && next.pair.includes(state.launch) ? state.launch : next.pair[1];
  if (next.tile && next.launch === null) next.launch = next.tile[0];
  const chosen = () => JSON.stringify([state.pair, state.launch, state.chain]);
  const before = chosen();
  Object.assign(state, next);
  changed(chosen() !== before);
}
function changed(step = false) {
  writeHash(step);
  for (const watcher of watchers) watcher();
}
function writeHash(step = false) {
  const parts = [];
  if (state.pair) parts.push(`pair=${state.pair.join(",")}`);
  else if (state.launch !== null && !state.tile) parts.push(`launch=${state.launch}`);
  if (state.tile) parts.push(`tile=${state.tile.join(",")}`);
  if (state.chain) parts.push(`chain=${state.chain.join(",")}`);
  if (state.tab !== "matrix") parts.push(`view=${state.tab}`);
  if (state.beside) parts.push(`beside=${state.beside}`);
  if (state.time !== null) parts.push(`time=${Math.round(state.time)}`);
  if (state.open.size) parts.push(`open=${[...state.open].join(",")}`);
  if (state.search) parts.push(`search=${encodeURIComponent(state.search)}`);
  if (settingWords()) parts.push(`if=${settingWords()}`);
  const hash = parts.length ? `#${parts.join("&")}` : "";
  if (hash === location.hash) return;
  history[step ? "pushState" : "replaceState"](null, "", hash || location.pathname + location.search);
}
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const numbers = (name) => (given.get(name) ?? "").split(",").filter(Boolean).map((word) => /^\d+$/.test(word) ? Number(word) : NaN);
  const isLaunch = (i) => Number.isInteger(i) && i >= 0 && i < launchCount;
  const [launch] = numbers("launch");
  const pair = numbers("pair");
  const tile = numbers("tile");
  state.pair = pairAt.has(pair.join(",")) ? pair : null;
  state.tile = isLaunch(tile[0]) && tile.length === 2 && tile[1] < launches.tiles[tile[0]] ? tile : null;
  state.launch = isLaunch(launch) ? launch : state.pair ? state.pair[1] : state.tile ? state.tile[0] : null;
  const chain2 = numbers("chain");
  state.chain = state.pair?.every((i) => chain2.includes(i)) && chain2.every((i, k) => isLaunch(i) && (!k || i > chain2[k - 1])) ? chain2 : null;
  state.tab = Object.hasOwn(TABS, given.get("view")) ? given.get("view") : "matrix";
  const beside = given.get("beside") ?? "";
  state.beside = doc.schedules.some((s) => s.name === beside && hasLanes(s)) ? beside : "";
  if (beside && !state.beside) served.besides?.(beside);
  const time = given.get("time") ? Number(given.get("time")) : NaN;
  state.time = Number.isFinite(time) && time >= 0 ? time : null;
  state.open = new Set((given.get("open") ?? "").split(",").filter(Boolean));
  state.search = given.get("search") ?? "";
  readSetting(given.get("if") ?? "");
}
function matches(i, words) {
  const names = ["kernel", "op", "module"].map((column) => [column, text(launches[column], i).toLowerCase()]);
  return words.every((word) => {
    const only = names.find(([column]) => word.startsWith(`${column}:`));
    return only ? only[1].includes(word.slice(only[0].length + 1)) : names.some(([, name]) => name.includes(word));
  });
}
var found = /* @__PURE__ */ new Set();
function findLaunches() {
  found.clear();
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return;
  for (let i = 0; i < launchCount; i++) if (matches(i, words)) found.add(i);
}

// viz/scripts/tabs/launch_layout.js
var GAP = { node: 22, bend: 9, rank: 38, side: 16, head: 32, foot: 14, port: 14 };
function layOut(drawing2) {
  prepare(drawing2.root);
  for (const box of drawing2.boxes) prepare(box);
  for (const edge of drawing2.edges) spread(edge);
  layOutBox(drawing2.root);
  place(drawing2.root, 0, 0);
  for (const edge of drawing2.edges) edge.path = joinRoutes(edge);
  drawing2.width = drawing2.root.w;
  drawing2.height = drawing2.root.h;
}
var prepare = (box) => Object.assign(box, { links: [], exits: /* @__PURE__ */ new Map(), entries: /* @__PURE__ */ new Map() });
function ancestors(node) {
  const chain2 = [];
  for (let at = node; at.parent; at = at.parent) chain2.push({ box: at.parent, child: at });
  return chain2;
}
function spread(edge) {
  const [up, down] = [ancestors(edge.a), ancestors(edge.b)];
  const shared = new Set(down.map((s) => s.box));
  const meeting = edge.around ?? up.find((s) => shared.has(s.box)).box;
  const passes = (chain2) => {
    const at = chain2.findIndex((s) => s.box === meeting);
    return chain2.slice(0, edge.around ? at + 1 : at);
  };
  edge.leaves = passes(up);
  edge.arrives = passes(down);
  edge.meeting = meeting;
  for (const { box, child } of edge.leaves) box.exits.set(edge.a, child);
  for (const { box, child } of edge.arrives) box.entries.set(edge.b, child);
  if (!edge.around) {
    const child = (chain2) => chain2.find((s) => s.box === meeting).child;
    meeting.links.push({ from: child(up), to: child(down), a: edge.a, b: edge.b });
  }
}
function layOutBox(box) {
  for (const child of box.children) if (child.boxed) layOutBox(child);
  const ranks = rankChildren(box);
  const net = new Net(box, ranks);
  net.order();
  net.assign();
  measure(box, net);
}
function rankChildren(box) {
  const before = new Map(box.children.map((c) => [c, []]));
  const after = new Map(box.children.map((c) => [c, []]));
  for (const { from, to } of box.links) {
    before.get(to).push(from);
    after.get(from).push(to);
  }
  const rank = /* @__PURE__ */ new Map();
  for (const child of box.children) rank.set(child, Math.max(0, ...before.get(child).map((p) => rank.get(p) + 1)));
  const fed = new Set(box.entries.values());
  for (const child of [...box.children].reverse()) {
    const next = after.get(child).map((c) => rank.get(c));
    if (!before.get(child).length && !fed.has(child) && next.length) rank.set(child, Math.min(...next) - 1);
  }
  return rank;
}
var Net = class {
  constructor(box, rank) {
    this.last = Math.max(-1, ...rank.values()) + 1;
    this.layers = Array.from({ length: this.last + 2 }, () => []);
    this.routes = { link: /* @__PURE__ */ new Map(), exit: /* @__PURE__ */ new Map(), entry: /* @__PURE__ */ new Map() };
    const at = /* @__PURE__ */ new Map();
    for (const child of box.children) at.set(child, this.vertex(rank.get(child), child.w, child));
    const trunks = /* @__PURE__ */ new Map();
    const trunk = (a, child, depth) => {
      if (!trunks.has(a)) trunks.set(a, [at.get(child)]);
      const chain2 = trunks.get(a);
      while (chain2[0].rank + chain2.length <= depth) this.extend(chain2, a, child);
      return chain2.slice(0, depth - chain2[0].rank + 1);
    };
    for (const { from, to, a, b } of box.links) {
      const chain2 = trunk(a, from, rank.get(to) - 1);
      this.join(chain2.at(-1), at.get(to), chain2.length === 1 ? offsetOut(from, a) : 0, offsetIn(to, b));
      this.routes.link.set(routeKey(a, b), { from, a, to, b, chain: [...chain2, at.get(to)] });
    }
    for (const [a, child] of box.exits) {
      const chain2 = trunk(a, child, this.last - 1);
      const port = this.vertex(this.last, 1);
      this.join(chain2.at(-1), port, chain2.length === 1 ? offsetOut(child, a) : 0, 0);
      this.routes.exit.set(a, { from: child, a, chain: [...chain2, port] });
    }
    for (const [b, child] of box.entries) {
      const chain2 = [this.vertex(-1, 1)];
      while (chain2[0].rank + chain2.length < rank.get(child)) this.extend(chain2);
      this.join(chain2.at(-1), at.get(child), 0, offsetIn(child, b));
      this.routes.entry.set(b, { to: child, b, chain: [...chain2, at.get(child)] });
    }
  }
  vertex(rank, width, item = null) {
    const layer = this.layers[rank + 1];
    const made = { rank, width, item, x: 0, up: [], down: [], place: layer.length };
    layer.push(made);
    return made;
  }
  extend(chain2, a = null, child = null) {
    const end = chain2.at(-1);
    const bend = this.vertex(end.rank + 1, 1);
    this.join(end, bend, end.item && child ? offsetOut(child, a) : 0, 0);
    chain2.push(bend);
  }
  join(above, below, offsetAbove, offsetBelow) {
    const weight = (above.item ? 1 : 3) * (below.item ? 1 : 3);
    above.down.push({ to: below, shift: offsetBelow - offsetAbove, weight });
    below.up.push({ to: above, shift: offsetAbove - offsetBelow, weight });
  }
  order() {
    for (let round = 0; round < 8; round++) {
      const side = round % 2 ? "down" : "up";
      const layers = round % 2 ? [...this.layers].reverse() : this.layers;
      for (const layer of layers) {
        for (const v of layer) {
          const near = v[side];
          v.wish = near.length ? near.reduce((s, e) => s + e.to.place, 0) / near.length : v.place;
        }
        layer.sort((p, q) => p.wish - q.wish || p.place - q.place);
        for (const [i, v] of layer.entries()) v.place = i;
      }
    }
  }
  assign() {
    for (const layer of this.layers)
      settle(
        layer,
        layer.map(() => 0),
        layer.map(() => 1)
      );
    for (let round = 0; round < 14; round++) {
      const sides = round >= 12 ? ["up", "down"] : [round % 2 ? "down" : "up"];
      for (const layer of round % 2 ? [...this.layers].reverse() : this.layers) {
        const near = layer.map((v) => sides.flatMap((s) => v[s]));
        const total = near.map((edges) => edges.reduce((s, e) => s + e.weight, 0));
        const wish = near.map(
          (edges, i) => edges.length ? edges.reduce((s, e) => s + e.weight * (e.to.x + e.shift), 0) / total[i] : layer[i].x
        );
        settle(
          layer,
          wish,
          total.map((t) => t || 0.2)
        );
      }
    }
  }
};
var routeKey = (a, b) => `${a.index},${b.index}`;
var offsetOut = (child, a) => child.boxed ? child.exitX.get(a) - child.w / 2 : 0;
var offsetIn = (child, b) => child.boxed ? child.entryX.get(b) - child.w / 2 : 0;
function settle(layer, wish, weight) {
  const offset = [];
  layer.forEach((v, i2) => {
    const before = layer[i2 - 1];
    const gap = before?.item || v.item ? GAP.node : GAP.bend;
    offset.push(i2 ? offset[i2 - 1] + before.width / 2 + gap + v.width / 2 : 0);
  });
  const pools = [];
  wish.forEach((w, i2) => {
    let pool = { sum: (w - offset[i2]) * weight[i2], weight: weight[i2], size: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).weight > pool.sum / pool.weight) {
      const last = pools.pop();
      pool = { sum: last.sum + pool.sum, weight: last.weight + pool.weight, size: last.size + pool.size };
    }
    pools.push(pool);
  });
  let i = 0;
  for (const pool of pools) for (let k = 0; k < pool.size; k++, i++) layer[i].x = pool.sum / pool.weight + offset[i];
}
function measure(box, net) {
  const isRoot = !box.parent;
  const all = net.layers.flat();
  const left = all.length ? Math.min(...all.map((v) => v.x - v.width / 2)) : 0;
  const right = all.length ? Math.max(...all.map((v) => v.x + v.width / 2)) : 0;
  const shift = GAP.side - left;
  const [head, foot] = isRoot ? [GAP.side, GAP.side] : [GAP.head, GAP.foot];
  let y = head + (box.entries.size ? GAP.port : 0);
  const top = /* @__PURE__ */ new Map();
  const bottom = /* @__PURE__ */ new Map();
  for (let rank = 0; rank < net.last; rank++) {
    const height = Math.max(0, ...net.layers[rank + 1].map((v) => v.item?.h ?? 0));
    top.set(rank, y);
    bottom.set(rank, y + height);
    y += height + GAP.rank;
  }
  y += (net.last ? -GAP.rank : 0) + foot + (box.exits.size ? GAP.port : 0);
  top.set(net.last, y);
  for (const v of all) {
    v.x += shift;
    if (v.item) Object.assign(v.item, { x: v.x - v.item.w / 2, y: top.get(v.rank) });
  }
  Object.assign(box, { w: right - left + 2 * GAP.side, h: Math.max(y, head + foot) });
  const ends = (route) => route.chain.flatMap((v, i) => {
    if (v.item && i === 0) {
      const x = v.x + offsetOut(route.from, route.a);
      return [
        [x, v.item.y + v.item.h],
        [x, bottom.get(v.rank)]
      ];
    }
    if (v.item) return [[v.x + offsetIn(route.to, route.b), v.item.y]];
    if (v.rank === -1) return [[v.x, 0]];
    if (v.rank === net.last) return [[v.x, y]];
    return [
      [v.x, top.get(v.rank)],
      [v.x, bottom.get(v.rank)]
    ];
  });
  const points = (routes) => new Map([...routes].map(([key, route]) => [key, ends(route)]));
  box.linkRoutes = points(net.routes.link);
  box.exitRoutes = points(net.routes.exit);
  box.entryRoutes = points(net.routes.entry);
  box.exitX = new Map([...box.exitRoutes].map(([a, route]) => [a, route.at(-1)[0]]));
  box.entryX = new Map([...box.entryRoutes].map(([b, route]) => [b, route[0][0]]));
}
function place(box, x, y) {
  Object.assign(box, { ax: x, ay: y });
  for (const child of box.children) {
    if (child.boxed) place(child, x + child.x, y + child.y);
    else Object.assign(child, { ax: x + child.x, ay: y + child.y });
  }
}
function joinRoutes(edge) {
  const from = (box2, route) => route.map(([x, y]) => [x + box2.ax, y + box2.ay]);
  const out = edge.leaves.flatMap(({ box: box2 }) => from(box2, box2.exitRoutes.get(edge.a)));
  const into = [...edge.arrives].reverse().flatMap(({ box: box2 }) => from(box2, box2.entryRoutes.get(edge.b)));
  if (!edge.around)
    return trace([...out, ...from(edge.meeting, edge.meeting.linkRoutes.get(routeKey(edge.a, edge.b))), ...into]);
  const box = edge.around;
  const side = box.ax + box.w + 12 + edge.a.index % 4 * 5;
  const [first, last] = [out.at(-1), into[0]];
  return trace(out, into, [
    [first, [first[0], first[1] + 26], [side, first[1] + 26], [side, first[1] - 14]],
    [[side, last[1] + 14], [side, last[1] - 26], [last[0], last[1] - 26], last]
  ]);
}
function trace(points, more = [], bows = []) {
  const path = new Path2D();
  const samples = [];
  const run = (list) => list.forEach(([x, y], i) => {
    if (i === 0) {
      samples.push([x, y]);
      return;
    }
    const [px, py] = list[i - 1];
    if (px === x) path.lineTo(x, y);
    else path.bezierCurveTo(px, (py + y) / 2, x, (py + y) / 2, x, y);
    for (let t = 0.125; t <= 1; t += 0.125)
      samples.push([px + (x - px) * t * t * (3 - 2 * t), bezier(t, py, (py + y) / 2, (py + y) / 2, y)]);
  });
  const bow = ([p, q, r, s]) => {
    path.bezierCurveTo(...q, ...r, ...s);
    for (let t = 0.125; t <= 1; t += 0.125)
      samples.push([bezier(t, p[0], q[0], r[0], s[0]), bezier(t, p[1], q[1], r[1], s[1])]);
  };
  path.moveTo(...points[0]);
  run(points);
  if (bows.length) {
    bow(bows[0]);
    path.lineTo(...bows[1][0]);
    samples.push(bows[1][0]);
    bow(bows[1]);
    run(more);
  }
  const xs = samples.map((p) => p[0]);
  const ys = samples.map((p) => p[1]);
  return {
    path,
    samples,
    end: samples.at(-1),
    left: Math.min(...xs),
    right: Math.max(...xs),
    top: Math.min(...ys),
    bottom: Math.max(...ys)
  };
}
var bezier = (t, p, q, r, s) => (1 - t) ** 3 * p + 3 * (1 - t) ** 2 * t * q + 3 * (1 - t) * t * t * r + t ** 3 * s;

// viz/scripts/tabs/minimap.js
var MARGIN = 8;
var MOST = { width: 150, height: 170, share: 0.25 };
function mapOf(view, drawing2) {
  if (!drawing2?.nodes.length || !view.width) return null;
  const { x, y, kx } = view.view;
  const all = x >= -1 && y >= -1 && x + drawing2.width * kx <= view.width + 1 && y + drawing2.height * kx <= view.height + 1;
  if (all) return null;
  const wide = Math.min(MOST.width, view.width * MOST.share);
  const high = Math.min(MOST.height, view.height * MOST.share);
  const k = Math.min(wide / drawing2.width, high / drawing2.height);
  const [w, h] = [Math.max(drawing2.width * k, 24), Math.max(drawing2.height * k, 24)];
  return { x: view.width - w - MARGIN, y: view.height - h - MARGIN, w, h, k };
}
function drawMap(c, view, drawing2) {
  const map = mapOf(view, drawing2);
  if (!map) return;
  c.save();
  c.beginPath();
  c.rect(map.x, map.y, map.w, map.h);
  c.fillStyle = INK.page;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.fill();
  c.stroke();
  c.clip();
  c.fillStyle = INK.box;
  for (const b of drawing2.boxes) c.fillRect(map.x + b.ax * map.k, map.y + b.ay * map.k, b.w * map.k, b.h * map.k);
  c.fillStyle = INK.excess;
  for (const n of drawing2.nodes) {
    c.fillRect(map.x + n.ax * map.k, map.y + n.ay * map.k, Math.max(n.w * map.k, 1), Math.max(n.h * map.k, 1));
  }
  const { x, y, kx } = view.view;
  const k = map.k / kx;
  c.strokeStyle = INK.focus;
  c.lineWidth = 1.5;
  c.strokeRect(map.x - x * k, map.y - y * k, view.width * k, view.height * k);
  c.restore();
}
function moveByMapOf(view, drawing2, sx, sy) {
  const map = mapOf(view, drawing2);
  if (!map || sx < map.x || sy < map.y || sx > map.x + map.w || sy > map.y + map.h) return false;
  const { kx } = view.view;
  view.view.x = view.width / 2 - (sx - map.x) / map.k * kx;
  view.view.y = view.height / 2 - (sy - map.y) / map.k * kx;
  view.moved();
  return true;
}

// viz/scripts/tabs/pair_ranking.js
var MOST_RANKED = 100;
var order = { column: "", down: true };
function rankedEdges() {
  const { nodes, nodeOf } = drawing.flat;
  const near = (edge) => state.launch === null || [edge.a, edge.b].includes(nodes[nodeOf[state.launch]]);
  const wanted2 = (edge) => !state.search || edge.pairs.some((i) => found.has(pairs.producer[i]) || found.has(pairs.consumer[i]));
  const direct = (e) => pairs.direct[e.pair];
  const inPolicy = (e) => overlayOf.size && e.pairs.some((i) => overlayOf.has(i)) ? 1 : 0;
  const inReport = (e) => Math.min(...e.pairs.map((i) => pairs.group?.[i] >= 0 ? pairs.group[i] : pairCount));
  const edges = drawing.flat.edges.filter((e) => near(e) && wanted2(e)).sort(
    (p, q) => inPolicy(q) - inPolicy(p) || inReport(p) - inReport(q) || direct(q) - direct(p) || q.gain - p.gain || q.bytes - p.bytes
  );
  const value = SORTS[order.column];
  if (!value) return edges;
  const sign = order.down ? -1 : 1;
  return edges.sort((p, q) => {
    const [x, y] = [value(p), value(q)];
    return sign * (typeof x === "string" ? x.localeCompare(y) : (Number.isNaN(x) ? -1 : x) - (Number.isNaN(y) ? -1 : y));
  });
}
var SORTS = {
  pattern: (e) => doc.strings[pairs.pattern[e.pair]],
  producer: (e) => launchName(pairs.producer[e.pair]),
  consumer: (e) => launchName(pairs.consumer[e.pair]),
  "start early": (e) => pairs.early[e.pair],
  "gain each": (e) => pairs.gain_ns[e.pair],
  "gain in all": (e) => e.gain,
  edges: (e) => shownEdges(e.pair),
  bytes: (e) => pairs.bytes[e.pair],
  copies: (e) => e.pairs.length
};
function sortHead(name, k) {
  const chosen = order.column === name;
  const button = make("button", name, { type: "button" });
  button.addEventListener("click", () => {
    Object.assign(
      order,
      !chosen ? { column: name, down: k > 2 } : order.down === k > 2 ? { down: !order.down } : { column: "", down: true }
    );
    rankPairs();
    document.querySelector(`#ranking th:nth-child(${k + 1}) button`)?.focus();
  });
  const attributes = { scope: "col", "aria-sort": chosen ? order.down ? "descending" : "ascending" : "none" };
  if (k > 2) attributes.class = "number";
  if (HEAD_TITLES[name]) attributes.title = HEAD_TITLES[name];
  return make("th", [button], attributes);
}
function rankPairs() {
  const rows = rankedEdges();
  const title = state.launch === null ? "Top pairs" : `Pairs of launch ${state.launch}`;
  document.getElementById("matrix-title").textContent = title;
  const by = order.column ? `by ${order.column}` : `as in the report: by ${anyGain ? "what overlap could gain while all else stays ordered" : "dependent bytes"}`;
  document.getElementById("matrix-says").textContent = rows.length ? `${overlayOf.size && !order.column ? "the policy's first, then " : ""}sorted ${by} · choose one to see its tiles` : "";
  const list = document.getElementById("ranking");
  if (!rows.length) return list.replaceChildren(make("p", noPairs()));
  const head = [
    "pattern",
    "producer",
    "consumer",
    ...anyGain ? ["start early", "gain each", "gain in all"] : ["edges", "bytes"],
    "copies"
  ];
  const table = make("table", [
    make("thead", [make("tr", head.map(sortHead))]),
    make("tbody", rows.slice(0, MOST_RANKED).map(rankRow))
  ]);
  table.querySelector("tbody tr").tabIndex = 0;
  table.addEventListener("keydown", walkRows);
  if (anyGain) table.querySelector("th:nth-child(4)").append(info("pairs"));
  const more = rows.length > MOST_RANKED ? [make("p", `and ${number(rows.length - MOST_RANKED)} more, in the graph`)] : [];
  list.replaceChildren(table, ...more);
}
function walkRows(event) {
  const rows = [...document.querySelectorAll("#ranking tbody tr")];
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -rows.length, End: rows.length }[event.key];
  const at = rows.indexOf(document.activeElement);
  if (!step || at < 0) return;
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  rows[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
  event.stopPropagation();
}
var HEAD_TITLES = {
  "start early": "Share of the consumer's tiles whose producers all end before the producer launch does, in stream order: they could start early",
  "gain each": "Recorded time of the two launches and the gap between them, less the bound on both: no overlap of the two saves more. Of one copy",
  "gain in all": "The same for all copies together: what the pairs are ordered by",
  copies: "Pairs of repeated layers in this row"
};
var oneWave = (i) => !(pairs.early[i] > 0) && waves(pairs.producer[i]) <= 1;
function earlyWords(i) {
  if (!Number.isFinite(pairs.early[i])) return "–";
  return oneWave(i) ? "one wave" : `${Math.round(100 * pairs.early[i])}%`;
}
function earlyTitle(i) {
  if (!Number.isFinite(pairs.early[i])) return "not known";
  if (oneWave(i))
    return "The producer's tiles run in one wave and end together, so no consumer tile can start before that. What overlap gains here is the launch gap and the slots that the wave leaves idle.";
  if (!(pairs.early[i] > 0)) return "Every consumer tile needs a tile of the producer's last wave.";
  return HEAD_TITLES["start early"];
}
function noPairs() {
  if (launchCount < 2)
    return launchCount ? "The trace holds one launch, which depends on nothing." : "The trace holds no launches.";
  if (!doc.summary.accesses) return "The trace holds no accesses, so dependencies between its launches are unknown.";
  if (!pairCount) return "No launch depends on another one.";
  if (state.search) return "No matching launch has a pair.";
  return "No pair is shown; patterns may be hidden in the legend.";
}
function rankRow(edge) {
  const i = edge.pairs.find((p) => overlayOf.has(p)) ?? edge.pair;
  const launch = (l, ...more) => make("td", [make("span", launchName(l)), ...more, make("span", launchPlace(l), { class: "module" })], {
    title: text(launches.kernel, l)
  });
  const facts = anyGain ? [
    earlyWords(i),
    pairs.gain_ns[i] > 0 ? duration(pairs.gain_ns[i]) : "–",
    edge.gain > 0 ? duration(edge.gain) : "–"
  ] : [number(shownEdges(i)), size(pairs.bytes[i])];
  const numbers = [...facts, edge.pairs.length > 1 ? `×${edge.pairs.length}` : ""];
  const name = doc.strings[pairs.pattern[i]];
  const verdict2 = edge.pairs.some(missesSome) ? [make("span", "waits missing", { class: "bad" })] : [];
  const row2 = make(
    "tr",
    [
      make("td", [patternMark(name), document.createTextNode(name), ...verdict2]),
      launch(pairs.producer[i], make("span", `→ ${launchName(pairs.consumer[i])}`, { class: "narrow" })),
      launch(pairs.consumer[i]),
      ...numbers.map(
        (n, k) => make("td", n, {
          class: "number",
          ...anyGain && k === 0 && { title: earlyTitle(i) },
          ...!anyGain && k === 1 && edge.pairs.length > 1 && { title: `one copy; ${size(edge.bytes)} in all ${edge.pairs.length}` }
        })
      )
    ],
    { tabindex: "-1" }
  );
  const choose2 = () => select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  row2.addEventListener("click", choose2);
  row2.addEventListener("keydown", (e) => e.key === "Enter" && choose2());
  return row2;
}

// viz/scripts/tabs/pairs.js
var matrix = { key: "", parts: [], hidden: /* @__PURE__ */ new Set(), order: "dispatch", awaited: null, missing: null };
var overlays = keeper((doc.policy?.pairs ?? []).flatMap((p) => [p.awaited ?? {}, p.missing ?? {}]));
var overlayOf = new Map(
  (doc.policy?.pairs ?? []).map((p, i) => [p.pair, { awaited: p.awaited && 2 * i, missing: p.missing && 2 * i + 1 }])
);
var missesSome = (pair) => Number.isInteger(overlayOf.get(pair)?.missing);
var matrixView = new Surface(document.querySelector("#matrix canvas"), {
  axes: "free",
  draw: drawMatrix,
  hover: hoverMatrix,
  click: clickMatrix,
  margin: { left: 76, top: 44 },
  limits: [1e-7, 90]
});
matrixView.fit = () => {
  if (!matrix.parts.length) return;
  const kx = Math.min((matrixView.plotWidth - 14) / matrix.consumers, 64);
  const ky = Math.min((matrixView.plotHeight - 14) / matrix.producers, 36);
  matrixView.view = { x: 0, y: 0, kx, ky };
  matrixView.touched = false;
  matrixView.redraw();
};
matrixView.extent = () => [matrix.consumers, matrix.producers];
matrixView.keep = () => {
  const { view: v, plotWidth: w, plotHeight: h } = matrixView;
  v.x = Math.min(Math.max(v.x, 40 - matrix.consumers * v.kx), w - 40);
  v.y = Math.min(Math.max(v.y, 40 - matrix.producers * v.ky), h - 40);
};
async function showMatrix() {
  const key = state.pair ? state.pair.join(",") : "";
  const changedPair = key !== matrix.key;
  matrix.key = key;
  document.querySelector("#matrix .stage").hidden = !key;
  document.getElementById("pair").hidden = !key;
  document.getElementById("ranking").hidden = Boolean(key);
  document.getElementById("back").hidden = !key;
  if (!key) {
    matrix.parts = [];
    return rankPairs();
  }
  if (!changedPair) {
    if (matrix.parts.length) describePair();
    return matrixView.redraw();
  }
  matrix.parts = [];
  matrix.hidden.clear();
  const [from, to] = state.pair;
  const loads = (linksOf.get(key) ?? []).map(async (link) => ({
    link,
    hazard: HAZARDS[links.hazard[link]],
    reuse: Boolean(links.reuse[link]),
    name: links.reuse[link] ? "reuse" : HAZARDS[links.hazard[link]],
    block: await blocks.load(links.block[link])
  }));
  await Promise.all([loadGrid(from), loadGrid(to)]);
  const parts = await Promise.all(loads);
  const overlay = overlayOf.get(pairAt.get(key)) ?? {};
  const laid = (at) => Number.isInteger(at) ? overlays.load(at) : null;
  const [awaited, missing] = await Promise.all([laid(overlay.awaited), laid(overlay.missing)]);
  if (matrix.key !== key) return;
  Object.assign(matrix, {
    parts,
    awaited,
    missing,
    producers: launches.tiles[from],
    consumers: launches.tiles[to],
    pair: pairAt.get(key)
  });
  matrix.coarse = parts.some((p) => p.block.counts);
  matrix.leftOut = parts.some((p) => p.block.left_out);
  orderTiles();
  describePair();
  matrixView.fit();
}
function ordering(launch, count) {
  const table = grids.ready(gridOf[launch]);
  const tile = new Int32Array(count);
  for (let i = 0; i < count; i++) tile[i] = i;
  if (table?.x && matrix.order !== "dispatch" && !matrix.coarse) {
    const axes = { x: ["z", "y", "x"], y: ["z", "x", "y"], z: ["y", "x", "z"] }[matrix.order].map((a) => table[a]);
    tile.sort((p, q) => axes[0][p] - axes[0][q] || axes[1][p] - axes[1][q] || axes[2][p] - axes[2][q]);
  }
  const place2 = new Int32Array(count);
  for (let i = 0; i < count; i++) place2[tile[i]] = i;
  return { tile, place: place2 };
}
function orderTiles() {
  matrix.rows = ordering(state.pair[0], matrix.producers);
  matrix.columns = ordering(state.pair[1], matrix.consumers);
}
var linkedParts = () => matrix.parts.filter((p) => shownLink(p.link)).sort((p, q) => q.reuse - p.reuse);
var shownParts = () => linkedParts().filter((p) => !matrix.hidden.has(p.name) && !p.block.left_out);
function drawMatrix(c) {
  if (!matrix.parts.length) return matrix.key && sayCentre(c, matrixView, "…");
  const { view: v, margin: m } = matrixView;
  c.save();
  c.beginPath();
  c.rect(m.left, m.top, matrixView.plotWidth, matrixView.plotHeight);
  c.clip();
  c.fillStyle = INK.gap;
  c.fillRect(m.left + v.x, m.top + v.y, matrix.consumers * v.kx, matrix.producers * v.ky);
  const draw = (block, colour) => block && !block.left_out && (block.counts ? drawCoarse(c, block, colour) : drawBlock(c, block, colour));
  if (!matrix.hidden.has("excess")) draw(matrix.awaited, INK.excess);
  for (const part of shownParts()) draw(part.block, INK[part.name]);
  if (!matrix.hidden.has("missing")) draw(matrix.missing, INK.missing);
  drawGridLines(c);
  drawCrosses(c);
  drawChosen(c);
  c.restore();
  drawMatrixAxes(c);
}
function visible() {
  const [x0, y0] = matrixView.toWorld(matrixView.margin.left, matrixView.margin.top);
  const [x1, y1] = matrixView.toWorld(matrixView.width, matrixView.height);
  const clip = (v, most) => Math.min(Math.max(v, 0), most);
  return {
    c0: clip(Math.floor(x0), matrix.consumers),
    c1: clip(Math.ceil(x1), matrix.consumers),
    p0: clip(Math.floor(y0), matrix.producers),
    p1: clip(Math.ceil(y1), matrix.producers)
  };
}
var cellTiles = (k) => k >= 1 ? 1 : 2 ** Math.ceil(Math.log2(1 / k));
function countCells(block) {
  const { c0, c1, p0, p1 } = visible();
  const [across, down] = [cellTiles(matrixView.view.kx), cellTiles(matrixView.view.ky)];
  const [left, top] = [Math.floor(c0 / across) * across, Math.floor(p0 / down) * down];
  const [wide, high] = [Math.max(Math.ceil((c1 - left) / across), 1), Math.max(Math.ceil((p1 - top) / down), 1)];
  const counts = new Uint32Array(wide * high);
  const { set_of: setOf, indptr, parent } = block;
  const { tile } = matrix.columns;
  const { place: place2 } = matrix.rows;
  const kept2 = indptr.length < setOf.length / 4 ? /* @__PURE__ */ new Map() : null;
  for (let column = c0; column < c1; column++) {
    const set = setOf[tile[column]];
    if (set < 0) continue;
    const cell = Math.floor((column - left) / across);
    let rows = kept2?.get(set);
    if (rows) {
      for (const [row2, count] of rows) counts[row2 + cell] += count;
      continue;
    }
    rows = /* @__PURE__ */ new Map();
    for (let e = indptr[set]; e < indptr[set + 1]; e++) {
      const at = place2[parent[e]];
      if (at < p0 || at >= p1) continue;
      const row2 = Math.floor((at - top) / down) * wide;
      counts[row2 + cell]++;
      if (kept2) rows.set(row2, (rows.get(row2) ?? 0) + 1);
    }
    kept2?.set(set, [...rows]);
  }
  return { counts, wide, high, left, top, across, down };
}
var scratch = document.createElement("canvas");
function drawBlock(c, block, colour) {
  const cells = countCells(block);
  const full = Math.min(cells.across, matrix.consumers) * Math.min(cells.down, matrix.producers);
  paint(c, cells.counts, cells.wide, cells.high, full, colour, [
    cells.left,
    cells.top,
    cells.wide * cells.across,
    cells.high * cells.down
  ]);
}
function drawCoarse(c, { counts, rows, columns }, colour) {
  const full = matrix.consumers / columns * (matrix.producers / rows);
  paint(c, counts, columns, rows, full, colour, [0, 0, matrix.consumers, matrix.producers]);
}
function paint(c, counts, wide, high, full, colour, [x, y, w, h]) {
  if (!(wide > 0 && high > 0)) return;
  const rgb = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  const image = new ImageData(wide, high);
  for (let i = 0; i < counts.length; i++) {
    if (!counts[i]) continue;
    image.data.set(rgb, 4 * i);
    image.data[4 * i + 3] = colour === INK.missing ? 255 : 85 + 170 * Math.min(counts[i] / full, 1);
  }
  scratch.width = wide;
  scratch.height = high;
  scratch.getContext("2d").putImageData(image, 0, 0);
  c.imageSmoothingEnabled = false;
  const [sx, sy] = matrixView.toScreen(x, y);
  c.drawImage(scratch, sx, sy, w * matrixView.view.kx, h * matrixView.view.ky);
}
function drawGridLines(c) {
  const { kx, ky } = matrixView.view;
  const { c0, c1, p0, p1 } = visible();
  c.fillStyle = INK.page;
  if (kx >= 6) for (let i = c0; i <= c1; i++) c.fillRect(matrixView.toScreen(i, 0)[0] - 0.5, 0, 1, matrixView.height);
  if (ky >= 6) for (let i = p0; i <= p1; i++) c.fillRect(0, matrixView.toScreen(0, i)[1] - 0.5, matrixView.width, 1);
}
function drawCrosses(c) {
  const { kx, ky } = matrixView.view;
  const { missing } = matrix;
  if (!missing?.parent || matrix.hidden.has("missing") || Math.min(kx, ky) < 7) return;
  const { c0, c1, p0, p1 } = visible();
  const r = Math.min(kx, ky, 16) / 4;
  c.strokeStyle = INK.page;
  c.lineWidth = 1.5;
  c.beginPath();
  for (let column = c0; column < c1; column++) {
    const set = missing.set_of[matrix.columns.tile[column]];
    for (let e = set < 0 ? 0 : missing.indptr[set]; set >= 0 && e < missing.indptr[set + 1]; e++) {
      const row2 = matrix.rows.place[missing.parent[e]];
      if (row2 < p0 || row2 >= p1) continue;
      const [x, y] = matrixView.toScreen(column + 0.5, row2 + 0.5);
      c.moveTo(x - r, y - r);
      c.lineTo(x + r, y + r);
      c.moveTo(x + r, y - r);
      c.lineTo(x - r, y + r);
    }
  }
  c.stroke();
}
function drawChosen(c) {
  if (!state.tile) return;
  const [launch, tile] = state.tile;
  c.strokeStyle = INK.ink;
  c.lineWidth = 1.5;
  const { kx, ky } = matrixView.view;
  if (launch === state.pair[1]) {
    const [x, y] = matrixView.toScreen(matrix.columns.place[tile], 0);
    c.strokeRect(x, y, Math.max(kx, 2), matrix.producers * ky);
  } else if (launch === state.pair[0]) {
    const [x, y] = matrixView.toScreen(0, matrix.rows.place[tile]);
    c.strokeRect(x, y, matrix.consumers * kx, Math.max(ky, 2));
  }
}
function drawMatrixAxes(c) {
  const { view: v, margin: m, width, height } = matrixView;
  const { c0, c1, p0, p1 } = visible();
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.textBaseline = "alphabetic";
  c.textAlign = "left";
  const [from, to] = state.pair;
  c.fillStyle = INK.consumer;
  c.fillText(
    fitted(c, `${plural(matrix.consumers, "consumer tile")} →  ${shortKernel(to)}`, width - m.left - 8),
    m.left,
    14
  );
  c.save();
  c.translate(14, height);
  c.rotate(-Math.PI / 2);
  c.fillStyle = INK.producer;
  const words = fitted(c, `←  ${plural(matrix.producers, "producer tile")}  ${shortKernel(from)}`, height - m.top - 8);
  c.fillText(words, height - m.top - c.measureText(words).width, 0);
  c.restore();
  c.fillStyle = INK.soft;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.beginPath();
  c.textAlign = "center";
  const label = (launch, order2, i, k) => k > 62 ? `${order2.tile[i]} ${coordinates(launch, order2.tile[i])}` : String(order2.tile[i]);
  const across = Math.max(niceStep(46 / v.kx), 1);
  for (let i = Math.ceil(c0 / across) * across; i < c1; i += across) {
    const x = matrixView.toScreen(i + 0.5, 0)[0];
    c.moveTo(x, m.top - 5);
    c.lineTo(x, m.top - 1);
    if (x > m.left - 2) c.fillText(label(to, matrix.columns, i, v.kx), x, m.top - 9);
  }
  c.textAlign = "right";
  c.textBaseline = "middle";
  const down = Math.max(niceStep(22 / v.ky), 1);
  for (let i = Math.ceil(p0 / down) * down; i < p1; i += down) {
    const y = matrixView.toScreen(0, i + 0.5)[1];
    c.moveTo(m.left - 5, y);
    c.lineTo(m.left - 1, y);
    if (y > m.top - 2) c.fillText(String(matrix.rows.tile[i]), m.left - 8, y);
  }
  c.stroke();
}
function cellAt(sx, sy) {
  if (!matrix.parts.length || sx < matrixView.margin.left || sy < matrixView.margin.top) return null;
  const [x, y] = matrixView.toWorld(sx, sy).map(Math.floor);
  return x >= 0 && y >= 0 && x < matrix.consumers && y < matrix.producers ? [x, y] : null;
}
function hoverMatrix(sx, sy) {
  const cell = cellAt(sx, sy);
  if (!cell || matrix.leftOut) return null;
  const [from, to] = state.pair;
  if (matrix.coarse) return coarseLines(cell);
  const [across, down] = [cellTiles(matrixView.view.kx), cellTiles(matrixView.view.ky)];
  if (across * down > 1) return cellLines(cell, across, down);
  const [consumer, producer] = [matrix.columns.tile[cell[0]], matrix.rows.tile[cell[1]]];
  const lines = [
    `consumer tile ${consumer} ${coordinates(to, consumer)} of ${shortKernel(to)}`,
    `producer tile ${producer} ${coordinates(from, producer)} of ${shortKernel(from)}`
  ];
  const edges = shownParts().map((part) => edgeLine(part, producer, consumer)).filter(Boolean);
  return [
    ...lines,
    ...edges.length ? edges : ["no dependency"],
    ...policyLines(producer, consumer, edges.length > 0)
  ];
}
function hasEdge(block, producer, consumer) {
  if (!block?.parent || block.set_of[consumer] < 0) return false;
  const set = block.set_of[consumer];
  for (let e = block.indptr[set]; e < block.indptr[set + 1]; e++) if (block.parent[e] === producer) return true;
  return false;
}
function policyLines(producer, consumer, needed) {
  if (!overlayOf.has(matrix.pair)) return [];
  if (hasEdge(matrix.missing, producer, consumer)) return ["policy: MISSING, nothing waits for it"];
  const awaited = hasEdge(matrix.awaited, producer, consumer);
  if (needed) return [awaited ? "policy: waited for" : "policy: covered by other waits, or by renaming"];
  return awaited ? ["policy: excess, waited for though nothing depends on it"] : [];
}
function edgeLine({ block, hazard, reuse }, producer, consumer) {
  if (!block.bytes) {
    block.details().then(() => matrixView.hoverAgain());
    return hazard;
  }
  const set = block.set_of[consumer];
  for (let e = set < 0 ? 0 : block.indptr[set]; set >= 0 && e < block.indptr[set + 1]; e++) {
    if (block.parent[e] !== producer) continue;
    const words = [`${hazard}${reuse ? " (memory reuse)" : ""}: ${size(block.bytes[e])}`];
    if (share(block.last[e]) !== null) words.push(`written by ${share(block.last[e])}% of the producer's life`);
    if (share(block.first[e]) !== null) words.push(`needed at ${share(block.first[e])}% of the consumer's`);
    return words.join(", ");
  }
  return "";
}
function share(byte) {
  const step = byte & 255;
  return step === 255 ? null : Math.round(step / 254 * 100);
}
function cellLines([x, y], across, down) {
  const [left, top] = [Math.floor(x / across) * across, Math.floor(y / down) * down];
  const [right, bottom] = [Math.min(left + across, matrix.consumers), Math.min(top + down, matrix.producers)];
  let edges = 0;
  for (const { block } of shownParts()) {
    for (let column = left; column < right; column++) {
      const set = block.set_of[matrix.columns.tile[column]];
      for (let e = set < 0 ? 0 : block.indptr[set]; set >= 0 && e < block.indptr[set + 1]; e++) {
        const row2 = matrix.rows.place[block.parent[e]];
        if (row2 >= top && row2 < bottom) edges++;
      }
    }
  }
  return [
    `consumers ${left}–${right - 1}, producers ${top}–${bottom - 1}`,
    `${number(edges)} edges among ${number((right - left) * (bottom - top))} pairs of tiles`,
    "zoom in to see single tiles"
  ];
}
function coarseLines([x, y]) {
  const here = ({ block: b }) => b.counts[Math.floor(y * b.rows / matrix.producers) * b.columns + Math.floor(x * b.columns / matrix.consumers)];
  const edges = shownParts().filter((p) => p.block.counts).reduce((sum, part) => sum + here(part), 0);
  return [
    `about consumer ${number(x)}, producer ${number(y)}`,
    `${number(edges)} edges in this cell`,
    "aggregated: single tiles are not in this page"
  ];
}
function clickMatrix(sx, sy) {
  const cell = cellAt(sx, sy);
  if (!cell) return;
  const consumer = matrix.columns.tile[cell[0]];
  const same = state.tile && state.tile[0] === state.pair[1] && state.tile[1] === consumer;
  select({ pair: state.pair, chain: state.chain, tile: same ? null : [state.pair[1], consumer] });
}
function describePair() {
  const i = matrix.pair;
  const [from, to] = state.pair;
  document.getElementById("matrix-title").textContent = `${launchName(from)} → ${launchName(to)}`;
  const says = [];
  if (matrix.coarse) says.push("aggregated: zoom shows no single tiles");
  if (matrix.leftOut) says.push("left out: this pair did not fit in the page");
  document.getElementById("matrix-says").textContent = says.join(" · ") || "click a column to follow its tile";
  const fact = (label, value, mark = "") => make("span", [document.createTextNode(`${label} `), make("b", value)], mark ? { class: mark } : {});
  const names = make("div", [nameOf(from, INK.producer), document.createTextNode("→"), nameOf(to, INK.consumer)], {
    class: "full"
  });
  const pattern = make("span", [
    patternMark(doc.strings[pairs.pattern[i]]),
    document.createTextNode(" "),
    make("b", doc.strings[pairs.pattern[i]])
  ]);
  pattern.firstChild.style.width = "24px";
  const parts = [names, pattern];
  const map = doc.strings[pairs.map[i]];
  if (map) parts.push(fact("map", map));
  if (!linkedParts().length)
    parts.push(
      make(
        "span",
        "these launches depend on each other through memory reuse only, which is off: its button is above the launches",
        { class: "mark" }
      )
    );
  parts.push(fact("edges", number(shownEdges(i))), fact("bytes", size(pairs.bytes[i])));
  if (Number.isFinite(pairs.tightness[i])) parts.push(fact("tightness", short(pairs.tightness[i])), info("pair"));
  const children = Math.max(0, ...linkedParts().map((p) => links.children[p.link]));
  const free = matrix.consumers - children;
  if (free > 0) parts.push(fact("consumer tiles that wait for none", number(free)));
  if (pairs.gain_ns[i] > 0) parts.push(fact("gain up to", duration(pairs.gain_ns[i])));
  if (Number.isFinite(pairs.early[i]))
    parts.push(
      make("span", [document.createTextNode("start early "), make("b", earlyWords(i))], { title: earlyTitle(i) })
    );
  parts.push(...hazardChips());
  if (!matrix.coarse && !matrix.leftOut) parts.push(orderChoice());
  if (launches.coverage[from] === 2 || launches.coverage[to] === 2)
    parts.push(make("span", "conservative accesses: a superset of the real dependencies", { class: "mark" }));
  document.getElementById("pair").replaceChildren(...parts);
}
function nameOf(launch, colour) {
  const dot = make("i", "", { class: "dot" });
  dot.style.background = colour;
  const where = text(launches.module, launch);
  return make(
    "span",
    [dot, document.createTextNode(` ${launch} ${shortKernel(launch)}${where ? ` in ${where}` : ""}`)],
    { class: "name" }
  );
}
function hazardChips() {
  const counts = {};
  for (const { name, link } of linkedParts()) counts[name] = (counts[name] ?? 0) + links.edges[link];
  const names = Object.keys(counts).sort();
  if (matrix.missing) names.push("missing");
  if (matrix.awaited) names.push("excess");
  const titles = {
    reuse: "Hazards that exist only because the allocator handed memory out again",
    missing: "Dependencies that no wait of the policy covers",
    excess: "Tiles that the policy waits for though nothing depends on them"
  };
  return names.map((hazard) => {
    const dot = make("i");
    dot.style.background = INK[hazard];
    const title = titles[hazard] ?? "Show or hide";
    const chip = make(
      "button",
      [
        dot,
        document.createTextNode(
          [hazard === "reuse" ? "memory reuse" : hazard, hazard in counts ? number(counts[hazard]) : ""].join(" ").trim()
        )
      ],
      { type: "button", class: "chip", title, "aria-pressed": "false" }
    );
    chip.style.opacity = matrix.hidden.has(hazard) ? 0.45 : 1;
    chip.addEventListener("click", () => {
      if (!matrix.hidden.delete(hazard)) matrix.hidden.add(hazard);
      describePair();
      matrixView.redraw();
    });
    return chip;
  });
}
function orderChoice() {
  const words = { dispatch: "dispatch order", x: "along x", y: "along y", z: "along z" };
  const choice = make(
    "select",
    Object.entries(words).map(([value, label]) => make("option", label, { value })),
    { "aria-label": "Order of tiles" }
  );
  choice.value = matrix.order;
  choice.addEventListener("change", () => {
    matrix.order = choice.value;
    orderTiles();
    matrixView.redraw();
  });
  return choice;
}

// viz/scripts/tabs/tensor_ranges.js
var MOST_RANGES = 5e4;
var MOST_CELLS = 512;
function ordered({ shape, strides }) {
  const axes = shape.map((size2, axis) => ({ axis, size: size2, stride: strides[axis] })).filter((a) => a.size > 1);
  return axes.filter((a) => a.stride > 0).sort((p, q) => q.stride - p.stride);
}
function rangesOfRun(begin, length, axes, shape) {
  const whole = () => shape.map((size2) => [0, size2]);
  const split = (from, count, k) => {
    if (count <= 0) return [];
    if (k === axes.length) return [shape.map(() => [0, 1])];
    const { axis, size: size2, stride } = axes[k];
    const [first, last] = [Math.floor(from / stride), Math.floor((from + count - 1) / stride)];
    if (first >= size2 || last < 0) return [];
    const at = (low2, high2, inner2) => inner2.map((range2) => range2.map((r, a) => a === axis ? [low2, high2] : r));
    if (first === last) return at(first, first + 1, split(from - first * stride, count, k + 1));
    const parts = [];
    let [low, high] = [first, last + 1];
    const inner = k + 1 < axes.length;
    if (inner && from > first * stride) {
      parts.push(...at(first, first + 1, split(from - first * stride, (first + 1) * stride - from, k + 1)));
      low++;
    }
    const left = from + count - last * stride;
    if (inner && left < stride) {
      parts.push(...at(last, last + 1, split(0, left, k + 1)));
      high--;
    }
    if (high > low) parts.push(...at(Math.max(low, 0), Math.min(high, size2), [tail(k + 1)]));
    return parts.filter((range2) => range2[axis][0] < size2 && range2[axis][1] > 0);
  };
  const tail = (k) => {
    const range2 = whole();
    for (const { axis } of axes.slice(0, k)) range2[axis] = [0, 1];
    return range2;
  };
  const fixed = new Set(axes.map((a) => a.axis));
  return split(begin, length, 0).map((range2) => range2.map((r, axis) => fixed.has(axis) ? r : [0, shape[axis]]));
}
function rangesOfBox({ offset, length, levels }, tensor) {
  const axes = ordered(tensor);
  const element = (bytes) => Math.floor(bytes / tensor.item);
  const begin = element(offset - tensor.offset);
  const run = Math.max(Math.ceil(length / tensor.item), 1);
  const repeats = levels.filter(([count]) => count > 1).map(([count, stride]) => [count, element(stride)]);
  const expand = (from, k) => {
    if (k < 0) return rangesOfRun(from, run, axes, tensor.shape);
    const [count, stride] = repeats[k];
    const inner = expand(from, k - 1);
    const along = axes.find((a) => a.stride === stride);
    const fits = ([low, high], size2) => high - low === 1 && low + count <= size2;
    if (along && inner.length && inner.every((range2) => fits(range2[along.axis], along.size))) {
      return inner.map((range2) => range2.map((r, a) => a === along.axis ? [r[0], r[0] + count] : r));
    }
    const all = [];
    for (let i = 0; i < count && all.length < MOST_RANGES; i++) all.push(...expand(from + i * stride, k - 1));
    return all;
  };
  return expand(begin, repeats.length - 1);
}
function hull(ranges) {
  if (!ranges.length) return null;
  return ranges[0].map((_, axis) => [
    Math.min(...ranges.map((r) => r[axis][0])),
    Math.max(...ranges.map((r) => r[axis][1]))
  ]);
}
function cellsOf(ranges, shape, [down, across]) {
  const step = [down, across].map((axis) => Math.ceil(shape[axis] / MOST_CELLS));
  const [high, wide] = [down, across].map((axis, k) => Math.ceil(shape[axis] / step[k]));
  const sums = new Float64Array((high + 1) * (wide + 1));
  const behind = shape.reduce((n, size2, axis) => axis === down || axis === across ? n : n * size2, 1);
  for (const range2 of ranges) {
    const weight = range2.reduce((n, [a, b], axis) => axis === down || axis === across ? n : n * (b - a), 1) / behind;
    const [y0, y1] = [Math.floor(range2[down][0] / step[0]), Math.ceil(range2[down][1] / step[0])];
    const [x0, x1] = [Math.floor(range2[across][0] / step[1]), Math.ceil(range2[across][1] / step[1])];
    sums[y0 * (wide + 1) + x0] += weight;
    sums[y0 * (wide + 1) + x1] -= weight;
    sums[y1 * (wide + 1) + x0] -= weight;
    sums[y1 * (wide + 1) + x1] += weight;
  }
  for (let y = 0; y <= high; y++) {
    for (let x = 1; x <= wide; x++) sums[y * (wide + 1) + x] += sums[y * (wide + 1) + x - 1];
  }
  const share2 = new Float32Array(high * wide);
  for (let x = 0; x < wide; x++) {
    let sum = 0;
    for (let y = 0; y < high; y++) {
      sum += sums[y * (wide + 1) + x];
      share2[y * wide + x] = sum < 1e-9 ? 0 : Math.min(sum, 1);
    }
  }
  return { share: share2, high, wide, step };
}

// viz/scripts/tabs/tile_graph.js
var MOST_NODES = 4e3;
var MOST_LINES = 3e4;
var chain = {
  key: null,
  launches: [],
  height: 1,
  bundles: [],
  lines: 0,
  left: 0,
  free: [],
  parents: null,
  problem: ""
};
var hot = null;
var tilesView = new Surface(document.querySelector("#tiles canvas"), {
  axes: "y",
  draw: drawTileGraph,
  hover: hoverTileGraph,
  click: clickTileGraph,
  margin: { left: 8, top: 22 },
  limits: [1e-4, 1e6]
});
tilesView.fit = () => {
  const pad = Math.min(8, tilesView.plotHeight / 8);
  tilesView.view = { x: 0, y: pad, kx: 1, ky: (tilesView.plotHeight - 2 * pad) / chain.height };
  tilesView.touched = false;
  tilesView.keep();
  tilesView.redraw();
};
tilesView.extent = () => [Infinity, chain.height];
tilesView.keep = () => {
  const { view: v, plotHeight: h } = tilesView;
  v.kx = (tilesView.plotWidth - 8) / Math.max(chain.launches.length, 1);
  v.x = 0;
  v.y = Math.min(Math.max(v.y, Math.min(h - chain.height * v.ky - 8, 8)), 8 + h / 2);
};
function chainNow() {
  if (state.pair) return state.chain ?? state.pair;
  const launch = state.launch ?? state.tile?.[0] ?? null;
  const near = launch === null ? [] : [heaviestPair(launch, "consumer"), heaviestPair(launch, "producer")];
  const small = (i2) => launches.tiles[pairs.producer[i2]] + launches.tiles[pairs.consumer[i2]] <= 600;
  const best = launch === null ? rankedEdges().map((e) => e.pair) : [];
  const i = [...near, best.find(small), best[0]].find((p) => p !== void 0 && p >= 0);
  return i === void 0 ? [] : [pairs.producer[i], pairs.consumer[i]];
}
async function showTiles() {
  if (state.tab !== "tiles") return;
  const now = chainNow();
  const key = now.join(",") + (showReuse ? "r" : "");
  if (key === chain.key) return tilesView.redraw();
  Object.assign(chain, { key, launches: now, bundles: [], lines: 0, left: 0, free: [], parents: null, problem: "" });
  describeChain();
  const count = now.reduce((n, i) => n + launches.tiles[i], 0);
  if (!now.length) chain.problem = noPairs();
  else if (count > MOST_NODES)
    chain.problem = `${number(count)} tiles are too many to draw one by one; the matrix shows each pair of them.`;
  if (chain.problem) {
    sayTiles();
    return tilesView.redraw();
  }
  chain.height = Math.max(...now.map((i) => launches.tiles[i]), 1);
  const loads = [];
  for (let b = 1; b < now.length; b++) {
    for (let a = 0; a < b; a++) {
      for (const link of shownLinks(now[a], now[b]))
        loads.push(blocks.load(links.block[link]).then((block) => ({ a, b, link, block })));
    }
  }
  const [parts] = await Promise.all([
    Promise.all(loads),
    ...now.flatMap((i) => [loadGrid(i), laneTables.load(laneOf[i])])
  ]);
  if (chain.key !== key) return;
  for (const part of parts) bundle(part);
  findFree(parts);
  openTiles();
  sayTiles();
}
var APART = 5;
function openTiles() {
  tilesView.resize();
  tilesView.fit();
  const column = state.tile ? chain.launches.indexOf(state.tile[0]) : -1;
  chain.partly = tilesView.width > 0 && tilesView.view.ky < APART;
  if (!chain.partly) return;
  tilesView.view.ky = APART;
  tilesView.view.y = column < 0 ? 8 : tilesView.plotHeight / 2 - nodeY(column, state.tile[1]) * APART;
  tilesView.moved();
}
var nodeY = (column, tile) => (tile + 0.5) * chain.height / launches.tiles[chain.launches[column]];
function bundle({ a, b, link, block }) {
  if (!block.parent) {
    chain.left += links.edges[link];
    return;
  }
  const children = /* @__PURE__ */ new Map();
  block.set_of.forEach((set, tile) => {
    if (set < 0) return;
    if (!children.has(set)) children.set(set, []);
    children.get(set).push(tile);
  });
  for (const [set, users] of children) {
    const parents = block.parent.subarray(block.indptr[set], block.indptr[set + 1]);
    const edges = parents.length * users.length;
    const through = edges > parents.length + users.length;
    const lines = through ? parents.length + users.length : edges;
    if (chain.lines + lines > MOST_LINES) {
      chain.left += edges;
      continue;
    }
    chain.lines += lines;
    const mean = (column, tiles) => tiles.reduce((sum, t) => sum + nodeY(column, t), 0) / tiles.length;
    const hub = through ? [(a + b + 1) / 2 + 0.12 * (b - a), (mean(a, parents) + mean(b, users)) / 2] : null;
    chain.bundles.push({
      a,
      b,
      parents,
      users,
      hub,
      hazard: links.reuse[link] ? "reuse" : HAZARDS[links.hazard[link]]
    });
  }
}
function findFree(parts) {
  chain.parents = chain.launches.map((i) => new Uint32Array(launches.tiles[i]));
  for (const { b, block } of parts) {
    block.set_of?.forEach((set, tile) => {
      if (set >= 0) chain.parents[b][tile] += block.indptr[set + 1] - block.indptr[set];
    });
  }
  const known = chain.launches.map((_, k) => k > 0 && parts.filter((p) => p.b === k).every((p) => p.block.set_of));
  chain.free = chain.parents.map((counts, k) => known[k] ? counts.reduce((n, c) => n + (c ? 0 : 1), 0) : 0);
}
var isFree = (column, tile) => chain.free[column] > 0 && chain.parents[column][tile] === 0;
function sayTiles() {
  const says = [];
  if (!chain.problem) {
    const free = chain.free.reduce((n, f) => n + f, 0);
    says.push(free ? `${plural(free, "tile")} wait for none in the chain (squares)` : "every consumer tile waits");
    if (chain.partly) says.push("some of the tiles: 0 shows all");
    if (chain.left) says.push(`${number(chain.left)} edges not drawn: the matrix has them all`);
    else if (chain.bundles.some((b) => b.hub)) says.push("tiles with the same parents share a knot");
  }
  document.getElementById("tiles-says").textContent = says.join(" · ");
}
function describeChain() {
  const box = document.getElementById("chain");
  const parts = [];
  const button = (label, title, next) => {
    const made = make("button", label, { type: "button", title });
    made.disabled = !next;
    made.addEventListener("click", () => selectChain(next, state.tile));
    return made;
  };
  const now = chain.launches;
  const extended = (i) => i < 0 ? null : [.../* @__PURE__ */ new Set([...now, pairs.producer[i], pairs.consumer[i]])].sort((p, q) => p - q);
  const grown = (i) => extended(i)?.length > now.length ? extended(i) : null;
  if (now.length) {
    parts.push(
      button(
        "+ producer",
        "Add the launch that the first one depends on most",
        grown(heaviestPair(now[0], "consumer"))
      )
    );
    parts.push(
      make("span", (now.length > 2 ? "launches " : "") + now.join(" → "), {
        title: now.map((i) => text(launches.kernel, i)).join("\n"),
        class: "name"
      })
    );
    parts.push(
      button(
        "+ consumer",
        "Add the launch that depends most on the last one",
        grown(heaviestPair(now.at(-1), "producer"))
      )
    );
    if (now.length > 2) parts.push(button("shorter", "Without the last launch", now.slice(0, -1)));
  }
  box.replaceChildren(...parts);
}
var columnX = (column) => tilesView.margin.left + (column + 0.5) * tilesView.view.kx;
var tileY = (column, tile) => tilesView.toScreen(0, nodeY(column, tile))[1];
var radius = (column) => Math.min(Math.max(0.42 * tilesView.view.ky * chain.height / launches.tiles[chain.launches[column]], 0.8), 8);
function focusTile() {
  if (hot) return hot;
  const column = state.tile ? chain.launches.indexOf(state.tile[0]) : -1;
  return column < 0 ? null : [column, state.tile[1]];
}
function drawTileGraph(c) {
  if (chain.problem || !chain.launches.length) return sayCentre(c, tilesView, chain.problem || "…");
  if (!chain.parents) return sayCentre(c, tilesView, "…");
  tilesView.keep();
  const focus = focusTile();
  const near = focus ? neighbours(focus) : null;
  drawBundles(c, focus ? 0.14 : chain.lines > 3e3 ? 0.25 : 0.55, null);
  if (focus) drawBundles(c, 1, focus);
  for (let column = 0; column < chain.launches.length; column++) drawColumn(c, column, near);
  drawColumnNames(c);
}
function drawBundles(c, alpha, only) {
  const width = tilesView.width;
  const seen = (y0, y1) => Math.max(y0, y1) > 0 && Math.min(y0, y1) < tilesView.height;
  const curved = chain.lines < 4e3;
  c.lineWidth = only ? 1.6 : chain.lines > 600 ? 0.7 : 1;
  for (const hazard of ["reuse", ...HAZARDS]) {
    c.strokeStyle = INK[hazard];
    c.globalAlpha = alpha;
    c.beginPath();
    const line = (x0, y0, x1, y1) => {
      if (!seen(y0, y1) || x0 > width) return;
      c.moveTo(x0, y0);
      if (curved) c.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
      else c.lineTo(x1, y1);
    };
    for (const { a, b, parents, users, hub, hazard: kind } of chain.bundles) {
      if (kind !== hazard) continue;
      const from = only && only[0] === a && parents.includes(only[1]) ? [only[1]] : parents;
      const to = only && only[0] === b && users.includes(only[1]) ? [only[1]] : users;
      if (only && from === parents && to === users) continue;
      const [x0, x1] = [columnX(a) + radius(a), columnX(b) - radius(b)];
      if (hub) {
        const [hx, hy] = [tilesView.margin.left + hub[0] * tilesView.view.kx, tilesView.toScreen(0, hub[1])[1]];
        for (const p of from) line(x0, tileY(a, p), hx, hy);
        for (const u of to) line(hx, hy, x1, tileY(b, u));
      } else for (const p of from) for (const u of to) line(x0, tileY(a, p), x1, tileY(b, u));
    }
    c.stroke();
  }
  c.globalAlpha = 1;
}
function neighbours([column, tile]) {
  const near = chain.launches.map(() => /* @__PURE__ */ new Set());
  near[column].add(tile);
  for (const { a, b, parents, users } of chain.bundles) {
    if (b === column && users.includes(tile)) for (const p of parents) near[a].add(p);
    if (a === column && parents.includes(tile)) for (const u of users) near[b].add(u);
  }
  return near;
}
var NOT_BEGUN = 0;
var RUNNING = 1;
var ENDED = 2;
function doing(launch, tile) {
  const table = laneTables.ready(laneOf[launch]);
  const life = state.beside ? simulatedLife(launch, tile) : table?.sm ? [0, table.life[tile]].map((d) => startOf(launch) + (table.begin[tile] + d) * TENTH_NS) : null;
  if (!life) return null;
  const at = state.beside ? state.time - simulatedShift(simulated()) : state.time;
  return at < life[0] ? NOT_BEGUN : at < life[1] ? RUNNING : ENDED;
}
function drawColumn(c, column, near) {
  const launch = chain.launches[column];
  const [x, r] = [columnX(column), radius(column)];
  const colour = column === 0 ? INK.producer : column === chain.launches.length - 1 ? INK.consumer : INK.kernels[kernelColour.get(launches.kernel[launch])];
  for (let tile = 0; tile < launches.tiles[launch]; tile++) {
    const y = tileY(column, tile);
    if (y < tilesView.margin.top - r || y > tilesView.height + r) continue;
    const now = state.time === null ? null : doing(launch, tile);
    c.globalAlpha = near && !near[column].has(tile) ? 0.3 : 1;
    c.beginPath();
    const free = isFree(column, tile);
    if (free) c.rect(x - r, y - r, 2 * r, 2 * r);
    else c.arc(x, y, r, 0, 2 * Math.PI);
    c.fillStyle = now === NOT_BEGUN ? INK.page : colour;
    c.fill();
    if (r < 2 && !free) continue;
    const chosen = state.tile && state.tile[0] === launch && state.tile[1] === tile;
    c.strokeStyle = chosen || now === RUNNING ? INK.arrow : free ? INK.free : colour;
    c.lineWidth = chosen || now === RUNNING ? 2.5 : free ? Math.min(2.5, r) : 1;
    c.stroke();
    if (r > 5.5 && tilesView.view.kx > 90) {
      c.globalAlpha = near && !near[column].has(tile) ? 0.4 : 1;
      c.fillStyle = INK.soft;
      c.font = `10px ${FONT}`;
      c.textBaseline = "middle";
      c.textAlign = column ? "left" : "right";
      c.fillText(coordinates(launch, tile) || String(tile), column ? x + r + 4 : x - r - 4, y);
    }
  }
  c.globalAlpha = 1;
}
function drawColumnNames(c) {
  c.fillStyle = INK.page;
  c.globalAlpha = 0.85;
  c.fillRect(0, 0, tilesView.width, tilesView.margin.top - 2);
  c.globalAlpha = 1;
  c.font = `600 11px ${FONT}`;
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.fillStyle = INK.ink;
  chain.launches.forEach((i, column) => {
    c.fillText(
      fitted(c, `${shortKernel(i)} · ${plural(launches.tiles[i], "tile")}`, tilesView.view.kx - 8),
      columnX(column),
      10
    );
  });
}
function hitTileGraph(sx, sy) {
  if (!chain.parents || sy < tilesView.margin.top) return null;
  const column = Math.floor((sx - tilesView.margin.left) / tilesView.view.kx);
  if (column < 0 || column >= chain.launches.length) return null;
  if (Math.abs(sx - columnX(column)) > Math.max(radius(column) + 4, 12)) return null;
  const count = launches.tiles[chain.launches[column]];
  const tile = Math.floor(tilesView.toWorld(0, sy)[1] * count / chain.height);
  return tile >= 0 && tile < count ? [column, tile] : null;
}
function hoverTileGraph(sx, sy) {
  const hit = sx < 0 ? null : hitTileGraph(sx, sy);
  if (String(hit) !== String(hot)) {
    hot = hit;
    tilesView.canvas.style.cursor = hit ? "pointer" : "grab";
    tilesView.redraw();
  }
  return hit ? tileLines(...hit) : null;
}
function tileLines(column, tile) {
  const launch = chain.launches[column];
  const near = neighbours([column, tile]);
  const among = (list, word, many) => plural(
    list.reduce((n, tiles) => n + tiles.size, 0),
    word,
    many
  );
  const table = grids.ready(gridOf[launch]);
  const lanes = laneTables.ready(laneOf[launch]);
  const parents = among(near.slice(0, column), "parent");
  const children = among(near.slice(column + 1), "child", "children");
  const lines = [
    `${shortKernel(launch)}, tile ${tile} ${coordinates(launch, tile)}`,
    `launch ${launch} · ${shortModule(launch) || text(launches.op, launch)}`,
    `${parents}, ${children} in the chain${isFree(column, tile) ? " · waits for none" : ""}`
  ];
  if (table?.read) lines.push(`reads ${size(table.read[tile])}, writes ${size(table.written[tile])}`);
  lines.push(...bufferLines(launch));
  if (lanes?.sm) {
    const begin = startOf(launch) + lanes.begin[tile] * TENTH_NS;
    const end = begin + lanes.life[tile] * TENTH_NS;
    lines.push(`${TIMINGS[launches.timing[launch]]}: SM ${lanes.sm[tile]}, ${duration(begin)} to ${duration(end)}`);
  }
  return [...lines, besideWords(launch, tile)].filter(Boolean);
}
function bufferLines(launch) {
  const words = (i) => [text(buffers.name, i) || text(buffers.kind, i), text(buffers.dtype, i), text(buffers.shape, i)].filter(Boolean).join(" ");
  const named = (bit) => [
    ...new Set(usesOf[launch].filter((u) => uses.how[u] & bit).map((u) => words(uses.buffer[u])))
  ];
  const line = (verb, names) => names.length ? `${verb} ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}` : "";
  return [line("launch reads", named(1)), line("launch writes", named(2))];
}
function clickTileGraph(sx, sy) {
  const hit = hitTileGraph(sx, sy);
  const now = chain.launches;
  if (!now.length) return;
  const tile = hit ? [now[hit[0]], hit[1]] : null;
  const same = tile && state.tile && tile.join() === state.tile.join();
  selectChain(now, same ? null : tile);
}
function selectChain(next, tile) {
  const two = next.flatMap((b, k) => next.slice(0, k).map((a) => [a, b])).filter((p) => pairAt.has(p.join(",")));
  const pair = state.pair?.every((i) => next.includes(i)) ? state.pair : two[0];
  if (pair) select({ pair, chain: next.length > 2 ? next : null, tile });
}

// viz/scripts/tabs/simulated_lanes.js
var scheduleLanes = doc.schedules.map((s) => s.lanes);
var simulatedTables = keeper(scheduleLanes);
var scheduleAt = () => doc.schedules.findIndex((s) => s.name === state.beside);
var SHARES = 1e3;
var MOST_BOXES = 12e3;
function simulated() {
  const at = scheduleAt();
  if (at < 0 || !hasLanes(doc.schedules[at])) return null;
  const table = simulatedTables.ready(at);
  if (!table) {
    simulatedTables.load(at).then(() => {
      lanesView.touched ? lanesView.redraw() : lanesView.fit();
      tilesView.redraw();
    });
    return null;
  }
  if (table.sm && !table.top) placeInSms(table);
  return table;
}
var slotsOf = (launch) => Math.max(launches.blocks_per_sm[launch], 1);
function placeInSms(table) {
  const count = tileBase[launchCount];
  const [begin, end, top, launchOf] = [
    new Float64Array(count),
    new Float64Array(count),
    new Float32Array(count),
    new Int32Array(count)
  ];
  for (let i = 0; i < launchCount; i++) {
    for (let t = tileBase[i]; t < tileBase[i + 1]; t++) {
      begin[t] = table.open[i] + table.begin[t];
      end[t] = begin[t] + table.life[t];
      launchOf[t] = i;
    }
  }
  const order2 = Uint32Array.from(begin.keys()).sort((p, q) => begin[p] - begin[q] || p - q);
  const residents = Array.from({ length: rowCount }, () => []);
  for (const t of order2) {
    const sm = Math.max(Math.min(table.sm[t], rowCount - 1), 0);
    const here = residents[sm].filter((other) => end[other] > begin[t]);
    const high = 1 / slotsOf(launchOf[t]);
    let y = 0;
    let place2 = 0;
    for (; place2 < here.length && top[here[place2]] - y < high - 1e-5; place2++)
      y = Math.max(y, top[here[place2]] + 1 / slotsOf(launchOf[here[place2]]));
    top[t] = Math.min(y, 1 - high);
    here.splice(place2, 0, t);
    residents[sm] = here;
  }
  Object.assign(table, { begin, end, top, launchOf, order: order2 });
}
function simulatedShift(table) {
  const launch = state.pair ? state.pair[0] : state.launch ?? state.tile?.[0] ?? null;
  return launch === null || !table.open ? 0 : startOf(launch) - table.open[launch];
}
function drawSimulated(c, row2) {
  const table = simulated();
  const { view: v, margin: m, plotWidth: w } = lanesView;
  const top = lanesView.toScreen(0, row2)[1];
  const high = rowCount * v.ky;
  const schedule = doc.schedules[scheduleAt()];
  if (!table) return;
  const shift = simulatedShift(table);
  const x0 = lanesView.toScreen(shift, 0)[0];
  c.fillStyle = INK.idle;
  c.fillRect(x0, top, schedule.time_ns * v.kx, high);
  if (table.share) {
    Object.assign(aggregation, { any: true, simulated: true });
    return drawKernels(c, table, x0, top, high);
  }
  const from = (m.left - x0) / v.kx;
  const to = (m.left + w - x0) / v.kx;
  const seen = [];
  for (let t = 0; t < table.end.length; t++) if (table.begin[t] < to && table.end[t] > from) seen.push(t);
  if (seen.length > MOST_BOXES) {
    Object.assign(aggregation, { any: true, simulated: true });
    return drawMix(c, table, seen, [from, to], x0, top, high);
  }
  for (const t of seen) {
    const box = simulatedBox(table, t, row2, shift);
    c.fillStyle = launchColour(table.launchOf[t]);
    c.fillRect(
      box.x,
      box.y,
      Math.max(box.w - (box.w > 8 ? 1 : 0), 0.5),
      box.h > 4 ? box.h - 1 : Math.max(box.h, Math.min(v.ky / 2, 1))
    );
  }
}
function simulatedBox(table, t, row2, shift) {
  const { kx, ky } = lanesView.view;
  const [x, y] = lanesView.toScreen(table.begin[t] + shift, row2 + table.sm[t] + table.top[t]);
  return { x, y, w: (table.end[t] - table.begin[t]) * kx, h: ky / slotsOf(table.launchOf[t]) };
}
function drawKernels(c, table, x0, top, high) {
  const wide = table.end * lanesView.view.kx / table.bins;
  const colours = Array.from({ length: table.rows }, (_, row2) => kernelInk(table.kernels[row2]));
  for (let k = 0; k < table.bins; k++) {
    if (x0 + (k + 1) * wide < lanesView.margin.left || x0 + k * wide > lanesView.width) continue;
    let level = 0;
    for (let row2 = 0; row2 < table.rows; row2++) {
      const share2 = table.share[row2 * table.bins + k] / SHARES;
      c.fillStyle = colours[row2];
      c.fillRect(x0 + k * wide, top + high * (1 - level - share2), wide + 0.3, high * share2);
      level += share2;
    }
  }
}
var kernelInk = (name) => INK.kernels[kernelColour.get(doc.strings.indexOf(name)) ?? INK.kernels.length - 1];
function drawMix(c, table, seen, [from, to], x0, top, high) {
  const bins = Math.max(Math.min(Math.round(lanesView.plotWidth / 2), 600), 1);
  const scale = bins / (to - from);
  const load = /* @__PURE__ */ new Map();
  for (const t of seen) {
    const colour = launchColour(table.launchOf[t]);
    if (!load.has(colour)) load.set(colour, new Float64Array(bins));
    const column = load.get(colour);
    const [a, b] = [Math.max((table.begin[t] - from) * scale, 0), Math.min((table.end[t] - from) * scale, bins)];
    const share2 = 1 / deviceSlots(table.launchOf[t]);
    for (let k = Math.floor(a); k < b; k++) column[k] += (Math.min(b, k + 1) - Math.max(a, k)) * share2;
  }
  const wide = lanesView.view.kx * (to - from) / bins;
  const level = new Float64Array(bins);
  for (const [colour, column] of load) {
    c.fillStyle = colour;
    for (let k = 0; k < bins; k++) {
      if (!column[k]) continue;
      const h = Math.min(column[k], 1 - level[k]) * high;
      c.fillRect(x0 + from * lanesView.view.kx + k * wide, top + high * (1 - level[k]) - h, wide + 0.3, h);
      level[k] += h / high;
    }
  }
}
function hitSimulated(time, row2) {
  const table = simulated();
  if (!table?.top) return null;
  const at = time - simulatedShift(table);
  const [sm, within2] = [Math.floor(row2), row2 % 1];
  for (let k = table.order.length - 1; k >= 0; k--) {
    const t = table.order[k];
    if (table.sm[t] !== sm || table.begin[t] > at || table.end[t] <= at) continue;
    if (within2 >= table.top[t] && within2 < table.top[t] + 1 / slotsOf(table.launchOf[t]))
      return { launch: table.launchOf[t], tile: t - tileBase[table.launchOf[t]] };
  }
  return null;
}
function simulatedLife(launch, tile) {
  const table = simulated();
  if (!table?.top) return null;
  const t = tileBase[launch] + tile;
  return [table.begin[t], table.end[t]];
}
function fillBeside() {
  const choice = document.getElementById("beside");
  const ran2 = doc.schedules.filter(hasLanes);
  choice.parentElement.hidden = !ran2.length;
  choice.replaceChildren(
    make("option", "no schedule", { value: "" }),
    ...ran2.map((s) => make("option", s.name, { value: s.name, title: ABOUT[s.name] ?? s.name }))
  );
}

// viz/scripts/tabs/timeline_axes.js
function drawLaneAxes(c) {
  const { view: v, margin: m, width, height } = lanesView;
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.textBaseline = "alphabetic";
  c.textAlign = "left";
  const step = niceStep(90 / v.kx);
  c.beginPath();
  for (let t = Math.ceil(Math.max(-v.x / v.kx, 0) / step) * step; m.left + v.x + t * v.kx < width; t += step) {
    const x2 = m.left + v.x + t * v.kx;
    c.moveTo(x2, 0);
    c.lineTo(x2, 17);
    const words = tickTime(t, step, (width - m.left - v.x) / v.kx);
    if (x2 + 4 + c.measureText(words).width <= width) c.fillText(words, x2 + 4, 13);
  }
  c.stroke();
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.textAlign = "right";
  c.textBaseline = "middle";
  const rows = Math.max(niceStep(22 / v.ky), 1);
  const below = state.beside ? lanesView.toScreen(0, rowCount)[1] : height;
  for (const first of state.beside ? [0, simulatedRow()] : [0]) {
    if (first && aggregation.simulated) {
      drawShareAxis(c, first, height);
      continue;
    }
    for (let row2 = 0; row2 < rowCount; row2 += rows) {
      const y = lanesView.toScreen(0, first + row2 + 0.5)[1];
      if (y > m.top + 4 && y < (first ? height : below) - 4) c.fillText(`SM ${row2}`, m.left - 7, y);
    }
  }
  if (state.time === null) return;
  const x = lanesView.toScreen(state.time, 0)[0];
  if (x < m.left) return;
  c.fillStyle = INK.arrow;
  c.beginPath();
  c.moveTo(x, m.top);
  c.lineTo(x - 5, m.top - 8);
  c.lineTo(x + 5, m.top - 8);
  c.fill();
}
function drawShareAxis(c, first, end) {
  const { margin: m } = lanesView;
  const roomy = rowCount * lanesView.view.ky > 90;
  for (const share2 of roomy ? [0, 50, 100] : [0, 100]) {
    const y2 = lanesView.toScreen(0, first + rowCount * (1 - share2 / 100))[1];
    if (y2 < m.top - 2 || y2 > end + 2) continue;
    c.textBaseline = share2 === 0 ? "bottom" : share2 === 100 ? "top" : "middle";
    c.fillText(`${share2}%`, m.left - 7, y2);
  }
  const y = lanesView.toScreen(0, first + rowCount * 0.75)[1];
  if (!roomy || y < m.top || y > end) return;
  c.textBaseline = "middle";
  c.fillText("busy", m.left - 7, y - 6);
  c.fillText("slots", m.left - 7, y + 6);
}

// viz/scripts/tabs/module_levels.js
function namesOf(path) {
  const names = [];
  for (const part of path ? path.split(".") : []) {
    if (/^\d+$/.test(part) && names.length) names[names.length - 1] += `.${part}`;
    else names.push(part);
  }
  return names;
}
var moduleLevels = (() => {
  const levels = [];
  let before = [];
  for (let i = 0; i < launchCount; i++) {
    const names = namesOf(text(launches.module, i));
    let shared = 0;
    while (shared < names.length && names[shared] === before[shared]) shared++;
    names.forEach((name, level) => {
      if (level < shared) levels[level].at(-1).last = i;
      else {
        levels[level] ??= [];
        levels[level].push({ name, path: names.slice(0, level + 1).join("."), first: i, last: i });
      }
    });
    before = names;
  }
  while (levels.length > 1 && levels[0].length === 1 && levels[0][0].first === 0 && levels[0][0].last === launchCount - 1)
    levels.shift();
  return levels;
})();
var FILLS = 0.9;
function levelsIn(rows, from, to, startOf2, endOf2) {
  const fills = ({ first, last }) => Math.min(endOf2(last), to) - Math.max(startOf2(first), from) >= FILLS * (to - from);
  let skipped = 0;
  while (moduleLevels.length - skipped > rows && moduleLevels[skipped].some(fills)) skipped++;
  return moduleLevels.slice(skipped, skipped + rows);
}

// viz/scripts/tabs/timeline_overview.js
var AXIS = 20;
var ROW = 14;
var MOST_SHARE = 0.5;
var shownRows = 0;
var range = { from: null, to: null };
function arrangeOverview() {
  const room = Math.floor((lanesView.height * MOST_SHARE * (state.beside ? 0.7 : 1) - AXIS) / ROW) - 2;
  shownRows = Math.min(moduleLevels.length, Math.max(room, 2));
  lanesView.margin.top = AXIS + (shownRows + 2) * ROW + 2;
}
var onAxis = (y) => y < AXIS;
var overviewRows = () => [
  ...levelsNow().map((spans, row2) => ({ names: spans.map((span) => span.name), y: topOf(row2) + ROW / 2 })),
  { names: ["launches"], y: topOf(shownRows) + ROW / 2 }
];
var topOf = (row2) => AXIS + row2 * ROW;
var levelsNow = () => levelsIn(
  shownRows,
  Math.max(timeAt(lanesView.margin.left), 0),
  Math.min(timeAt(lanesView.width), lastEnd()),
  startOf,
  endOf
);
var filledOf = (i) => Math.min(launches.tiles[i] / (Math.max(Math.ceil(waves(i)), 1) * Math.max(deviceSlots(i), 1)), 1);
function drawOverview(c) {
  const { margin: m, width } = lanesView;
  c.save();
  c.beginPath();
  c.rect(m.left, 0, width - m.left, m.top);
  c.clip();
  c.textBaseline = "middle";
  c.textAlign = "left";
  levelsNow().forEach((spans, row2) => {
    spans.forEach((span, k) => {
      drawBar(c, row2, [startOf(span.first), endOf(span.last)], k % 2 ? INK.line : INK.box, span.name);
    });
  });
  for (let i = 0; i < launchCount; i++) {
    const chosen = i === state.launch || state.pair?.includes(i);
    drawBar(c, shownRows, [startOf(i), endOf(i)], launchColour(i), launchName(i), chosen);
  }
  drawFilled(c);
  c.restore();
  c.fillStyle = INK.soft;
  c.font = `11px ${FONT}`;
  c.textAlign = "right";
  c.textBaseline = "middle";
  const rows = [shownRows > 1 ? "modules" : "module", ...Array(Math.max(shownRows - 1, 0)).fill("")];
  [...rows.slice(0, shownRows), "launches", "filled"].forEach((word, row2) => {
    c.fillText(word, m.left - 6, topOf(row2) + ROW / 2 - 1);
  });
}
function drawBar(c, row2, [begin, end], colour, name, chosen = false) {
  const { margin: m, width, view: v } = lanesView;
  const from = Math.max(m.left + v.x + begin * v.kx, m.left);
  const to = Math.min(m.left + v.x + end * v.kx, width);
  if (to <= from) return;
  c.fillStyle = colour;
  c.fillRect(from, topOf(row2), Math.max(to - from - (to - from > 3 ? 1 : 0), 0.5), ROW - 1);
  if (to - from < 14) return;
  c.font = `${chosen ? 600 : 400} 11px ${FONT}`;
  c.fillStyle = chosen ? INK.page : INK.ink;
  const room = to - from - 5;
  const last = name.split(".").at(-1);
  const shown = c.measureText(name).width > room && c.measureText(last).width <= room ? last : fitted(c, name, room);
  if (shown.length > 2 || shown === name || shown === last) c.fillText(shown, from + 2, topOf(row2) + ROW / 2 - 0.5);
}
function drawFilled(c) {
  const { margin: m, width, view: v } = lanesView;
  const columns = new Float64Array(Math.ceil(width - m.left) + 1);
  for (let i = 0; i < launchCount; i++) {
    const [from, to] = [v.x + startOf(i) * v.kx, v.x + endOf(i) * v.kx];
    const share2 = filledOf(i);
    for (let x = Math.max(Math.floor(from), 0); x < Math.min(to, columns.length); x++)
      columns[x] += share2 * (Math.min(to, x + 1) - Math.max(from, x));
  }
  c.fillStyle = INK.focus;
  c.globalAlpha = 0.7;
  columns.forEach((share2, x) => {
    const high = Math.min(share2, 1) * (ROW - 2);
    if (high > 0) c.fillRect(m.left + x, topOf(shownRows + 2) - 2 - high, 1, high);
  });
}
function barAt(x, y) {
  const row2 = Math.floor((y - AXIS) / ROW);
  if (x < lanesView.margin.left || row2 < 0 || row2 > shownRows) return null;
  const time = timeAt(x);
  const under = (first, last) => startOf(first) <= time && time < endOf(last);
  if (row2 < shownRows) return levelsNow()[row2]?.find(({ first, last }) => under(first, last)) ?? null;
  for (let i = 0; i < launchCount; i++) if (under(i, i)) return { launch: i };
  return null;
}
function hoverOverview(x, y) {
  const bar = barAt(x, y);
  if (!bar) return null;
  if (!("launch" in bar))
    return [bar.path, ...wordsBetween(startOf(bar.first), endOf(bar.last)), "click: fill the view"];
  const i = bar.launch;
  return [launchName(i), `launch ${i} · ${launchPlace(i)}`, duration(launches.duration_ns[i])];
}
function clickOverview(x, y) {
  const bar = barAt(x, y);
  if (!bar) return;
  if ("launch" in bar) return select({ launch: bar.launch });
  const [from, to] = [startOf(bar.first), endOf(bar.last)];
  const kx = (lanesView.plotWidth - 8) / (to - from);
  Object.assign(lanesView.view, { kx, x: 4 - from * kx });
  lanesView.moved();
}
function beginRange(x) {
  range.from = range.to = timeAt(x);
}
function moveRange(x) {
  range.to = timeAt(x);
  lanesView.redraw();
}
var timeAt = (x) => Math.min(Math.max(lanesView.toWorld(x, 0)[0], 0), lastEnd());
function clearRange() {
  range.from = range.to = null;
  lanesView.redraw();
}
function drawRange(c) {
  if (range.from === null) return;
  const [from, to] = [range.from, range.to].sort((a, b) => a - b).map((t) => lanesView.toScreen(t, 0)[0]);
  c.fillStyle = INK.focus;
  c.globalAlpha = 0.16;
  c.fillRect(from, lanesView.margin.top, Math.max(to - from, 1), lanesView.plotHeight);
  c.globalAlpha = 1;
}
function rangeWords() {
  const [from, to] = [range.from, range.to].sort((a, b) => a - b);
  return to > from ? `range of ${wordsBetween(from, to).join(", ")}` : "";
}
function wordsBetween(from, to) {
  let [covered, filled, count, reached] = [0, 0, 0, from];
  const spent = /* @__PURE__ */ new Map();
  const inside = Array.from({ length: launchCount }, (_, i) => i).filter((i) => startOf(i) < to && endOf(i) > from).sort((a, b) => startOf(a) - startOf(b));
  for (const i of inside) {
    const [a, b] = [Math.max(startOf(i), from), Math.min(endOf(i), to)];
    count++;
    filled += (b - a) * filledOf(i);
    spent.set(launchName(i), (spent.get(launchName(i)) ?? 0) + b - a);
    if (b > reached) {
      covered += b - Math.max(a, reached);
      reached = b;
    }
  }
  const percent = (share2) => `${Math.round(100 * share2)}%`;
  const most = [...spent].sort((p, q) => q[1] - p[1]).slice(0, 3).map(([name, ns]) => `${name} ${percent(ns / (to - from))}`);
  return [
    `${duration(to - from)}: ${plural(count, "launch", "launches")}`,
    `a kernel runs ${percent(covered / (to - from))} of it`,
    `slots ${percent(Math.min(filled / (to - from), 1))} filled; ${most.join(", ")}`
  ];
}
function kernelLabels(places) {
  const operators = places.map((place2) => {
    const launch = launches.kernel.indexOf(place2);
    return text(launches.op, launch) && launchName(launch);
  });
  const kernels = places.map((place2) => shortName(doc.strings[place2]) || "kernel");
  return kernels.map((kernel, at) => {
    const rivals = kernels.filter((_, k) => k !== at && operators[k] === operators[at]);
    if (operators[at] && !rivals.length) return operators[at];
    let shared = 0;
    for (const rival of rivals) {
      let same = 0;
      while (same < kernel.length && kernel[same] === rival[same]) same++;
      shared = Math.max(shared, same);
    }
    const cut = Math.max(kernel.lastIndexOf("_", shared - 1), kernel.lastIndexOf("<", shared - 1)) + 1;
    return `${operators[at]} ${kernel.slice(cut).replace(/^([^<]*)>$/, "$1")}`.trim();
  });
}
function showKernelLegend() {
  const box = document.getElementById("lanes-legend");
  if (!box || !launchCount) return;
  const names = [...kernelColour].filter(([, rank]) => rank < 5).sort((a, b) => a[1] - b[1]);
  const labels = kernelLabels(names.map(([place2]) => place2));
  const entry = (rank, label, title) => {
    const svg = svgOf("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    svg.append(svgOf("rect", { width: 10, height: 10, rx: 2, fill: INK.kernels[rank] }));
    return make("span", [svg, document.createTextNode(label)], { title, ...label.length < 16 && { class: "whole" } });
  };
  const entries = names.map(([place2, rank]) => entry(rank, labels[rank], doc.strings[place2]));
  if (kernelColour.size > 5)
    entries.push(entry(5, plural(kernelColour.size - 5, "other kernel"), "kernels with less time"));
  box.replaceChildren(...entries);
}

// viz/scripts/tabs/timeline.js
var lanesView = new Surface(document.querySelector("#lanes canvas"), {
  axes: "x",
  draw: drawLanes,
  hover: hoverLanes,
  click: clickLanes,
  take: scrub,
  margin: { left: 60, top: 72 },
  limits: [1e-9, 40]
});
var MOST_TILES = 6e4;
var MOST_ARROWS = 300;
var origin = launchCount ? launches.begin_ns.reduce((a, b) => Math.min(a, b)) : 0;
var laneFlow = { key: "", parents: [], children: [], count: 0, ready: true };
var lanesShown = "";
var aggregation = { any: false, simulated: false };
var startOf = (i) => launches.begin_ns[i] - origin;
var endOf = (i) => startOf(i) + Math.max(launches.duration_ns[i], 1);
var lastEnd = () => {
  let end = 1;
  for (let i = 0; i < launchCount; i++) end = Math.max(end, endOf(i));
  return end;
};
var rowCount = Math.max(doc.summary.sms, 1);
var stripRows = () => 20 / Math.max(lanesView.view.ky, 1e-6);
var simulatedRow = () => rowCount + stripRows();
var laneHeight = () => state.beside ? (lanesView.plotHeight - 20) / 2 : lanesView.plotHeight;
var kernelColour = (() => {
  const spent = /* @__PURE__ */ new Map();
  for (let i = 0; i < launchCount; i++)
    spent.set(launches.kernel[i], (spent.get(launches.kernel[i]) ?? 0) + launches.duration_ns[i]);
  const ranked = [...spent].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  return new Map(ranked.map((name, rank) => [name, Math.min(rank, 5)]));
})();
function lanesWindow() {
  if (state.pair) return withSimulated(startOf(state.pair[0]), endOf(state.pair[1]));
  if (state.launch !== null)
    return [
      startOf(state.launch) - launches.duration_ns[state.launch],
      endOf(state.launch) + launches.duration_ns[state.launch]
    ];
  return [0, lastEnd()];
}
function withSimulated(from, to) {
  const table = state.beside ? simulated() : null;
  if (!table?.top) return [from, to];
  let end = to;
  for (let t = tileBase[state.pair[1]]; t < tileBase[state.pair[1] + 1]; t++)
    end = Math.max(end, table.end[t] + simulatedShift(table));
  return [from, Math.min(end, 2 * to - from)];
}
lanesView.arrange = arrangeOverview;
lanesView.fit = () => {
  if (!launchCount) return;
  const [from, to] = lanesWindow();
  const pad = (to - from) * 0.03;
  const kx = (lanesView.plotWidth - 8) / (to - from + 2 * pad);
  lanesView.view = { kx, ky: laneHeight() / rowCount, x: -(from - pad) * kx, y: 0 };
  lanesView.touched = false;
  lanesView.redraw();
};
lanesView.extent = () => [lastEnd(), Infinity];
lanesView.keep = () => {
  const { view: v, plotHeight: h, plotWidth: w } = lanesView;
  v.ky = Math.max(v.ky, laneHeight() / rowCount);
  const rows = state.beside ? simulatedRow() + rowCount : rowCount;
  v.y = Math.min(Math.max(v.y, h - rows * v.ky), 0);
  v.x = Math.min(Math.max(v.x, w * 0.2 - lastEnd() * v.kx), w * 0.8);
};
async function showLanes() {
  const key = `${state.pair ? state.pair.join(",") : String(state.launch)},${state.beside !== ""}`;
  if (key !== lanesShown) {
    lanesShown = key;
    arrangeOverview();
    lanesView.fit();
  }
  await findFlow();
  lanesView.redraw();
}
async function findFlow() {
  const key = state.tile ? state.tile.join(",") + (showReuse ? "r" : "") : "";
  if (key === laneFlow.key) return;
  Object.assign(laneFlow, { key, parents: [], children: [], count: 0, ready: !key });
  if (!key) return;
  const [launch, tile] = state.tile;
  const flow = { parents: [], children: [], count: 0 };
  const kept2 = /* @__PURE__ */ new Set();
  const keep2 = (list, other, t, reuse) => {
    const one = `${list === flow.parents} ${other} ${t}`;
    if (kept2.has(one)) return;
    kept2.add(one);
    if (flow.count++ < MOST_ARROWS) list.push([other, t, reuse]);
  };
  for (const i of pairsOf[launch]) {
    const [from, to] = [pairs.producer[i], pairs.consumer[i]];
    for (const link of shownLinks(from, to).sort((p, q) => links.reuse[p] - links.reuse[q])) {
      const reuse = Boolean(links.reuse[link]);
      const block = await blocks.load(links.block[link]);
      if (!block.parent) continue;
      if (to === launch) {
        const set = block.set_of[tile];
        for (let e = set < 0 ? 0 : block.indptr[set]; set >= 0 && e < block.indptr[set + 1]; e++)
          keep2(flow.parents, from, block.parent[e], reuse);
      } else {
        const sets = setsWith(block, tile);
        if (!sets.size) continue;
        for (const [t, set] of block.set_of.entries()) if (sets.has(set)) keep2(flow.children, to, t, reuse);
      }
    }
  }
  const used = /* @__PURE__ */ new Set([launch, ...flow.parents.map((p) => p[0]), ...flow.children.map((c) => c[0])]);
  await Promise.all([...used].flatMap((i) => [laneTables.load(laneOf[i]), loadGrid(i)]));
  if (laneFlow.key === key) Object.assign(laneFlow, flow, { ready: true });
}
function setsWith(block, parent) {
  const sets = /* @__PURE__ */ new Set();
  for (let set = 0; set + 1 < block.indptr.length; set++) {
    for (let e = block.indptr[set]; e < block.indptr[set + 1]; e++) if (block.parent[e] === parent) sets.add(set);
  }
  return sets;
}
function drawLanes(c) {
  if (!launchCount || !timed)
    return sayCentre(c, lanesView, `This trace holds no ${launchCount ? "times" : "launches"}.`);
  const { view: v, margin: m, plotWidth: w, plotHeight: h } = lanesView;
  const seen = [];
  for (let i = 0; i < launchCount; i++) {
    const x = m.left + v.x + startOf(i) * v.kx;
    const width = (endOf(i) - startOf(i)) * v.kx;
    if (x < lanesView.width && x + width > m.left) seen.push({ i, x, width });
  }
  c.save();
  c.beginPath();
  c.rect(m.left, m.top, w, h);
  c.clip();
  c.fillStyle = INK.gap;
  c.fillRect(m.left, m.top, w, h);
  let left = MOST_TILES;
  Object.assign(aggregation, { any: false, simulated: false });
  for (const launch of seen) left -= drawLaunch(c, launch, left);
  drawFlow(c);
  if (state.beside) drawBeside(c);
  drawTime(c);
  drawRange(c);
  c.restore();
  drawOverview(c);
  drawLaneAxes(c);
  sayLanes();
}
function drawBeside(c) {
  const { margin: m, plotWidth: w, plotHeight: h } = lanesView;
  const y = lanesView.toScreen(0, rowCount)[1];
  c.fillStyle = INK.gap;
  c.fillRect(m.left, y, w, m.top + h - y);
  drawSimulated(c, simulatedRow());
  const table = simulated();
  const shift = table ? simulatedShift(table) : 0;
  if (table?.top) drawFlow(c, (launch, tile) => simulatedBox(table, tileBase[launch] + tile, simulatedRow(), shift));
  c.fillStyle = INK.page;
  c.fillRect(m.left, y, w, 20);
  const schedule = doc.schedules[scheduleAt()];
  const moved2 = shift ? `, moved by ${shift > 0 ? "+" : "−"}${duration(Math.abs(shift))} to begin with the selection` : "";
  c.font = `600 11px ${FONT}`;
  c.fillStyle = INK.ink;
  c.textAlign = "left";
  c.textBaseline = "middle";
  c.fillText(
    fitted(c, `${schedule.name}, simulated: ${duration(schedule.time_ns)} in all${moved2}`, w - 8),
    m.left + 4,
    y + 10
  );
}
function scrub(x, y, moving = false, event = null) {
  if (moving && range.dragged) {
    moveRange(x);
    return true;
  }
  range.dragged = !moving && timed && Boolean(event?.shiftKey) && !onAxis(y) && x >= lanesView.margin.left;
  if (range.dragged) {
    beginRange(x);
    return true;
  }
  if (!timed || !moving && (!onAxis(y) || x < lanesView.margin.left)) return false;
  setTime(Math.min(Math.max(lanesView.toWorld(x, 0)[0], 0), lastEnd()));
  return true;
}
function setTime(time) {
  state.time = time;
  writeHash();
  lanesView.redraw();
  tilesView.redraw();
}
function stepTime(steps) {
  const step = lanesView.plotWidth / lanesView.view.kx / 100;
  setTime(Math.min(Math.max((state.time ?? -lanesView.view.x / lanesView.view.kx) + steps * step, 0), lastEnd()));
}
function drawTime(c) {
  if (state.time === null) return;
  const x = lanesView.toScreen(state.time, 0)[0];
  c.strokeStyle = INK.arrow;
  c.lineWidth = 1;
  c.setLineDash([4, 3]);
  c.beginPath();
  c.moveTo(x, lanesView.margin.top);
  c.lineTo(x, lanesView.height);
  c.stroke();
  c.setLineDash([]);
}
function runningWords() {
  let [count, known] = [0, true];
  const names = /* @__PURE__ */ new Set();
  for (let i = 0; i < launchCount; i++) {
    if (state.time < startOf(i) || state.time >= endOf(i)) continue;
    names.add(shortKernel(i));
    const table2 = laneTables.ready(laneOf[i]);
    if (!table2?.sm) known = false;
    const at = (state.time - startOf(i)) / TENTH_NS;
    for (let t = 0; t < table2?.sm?.length; t++)
      if (table2.begin[t] <= at && at < table2.begin[t] + table2.life[t]) count++;
  }
  const tiles = known ? plural(count, "tile") : "tiles";
  const words = [`at ${duration(state.time)}: ${names.size ? `${tiles} of ${[...names].join(", ")}` : "no tile runs"}`];
  const table = state.beside && simulated();
  if (table?.top) {
    const at = state.time - simulatedShift(table);
    let beside = 0;
    for (let t = 0; t < table.end.length; t++) if (table.begin[t] <= at && at < table.end[t]) beside++;
    words.push(`${number(beside)} in ${state.beside}`);
  }
  return words.join(", ");
}
function launchColour(i) {
  if (state.pair) return i === state.pair[0] ? INK.producer : i === state.pair[1] ? INK.consumer : INK.muted;
  if (state.launch !== null) return i === state.launch ? INK.focus : INK.muted;
  return INK.kernels[kernelColour.get(launches.kernel[i])];
}
function drawLaunch(c, { i, x, width }, left) {
  const top = lanesView.toScreen(0, 0)[1];
  const height = rowCount * lanesView.view.ky;
  c.fillStyle = launchColour(i);
  if (width < 3) {
    c.globalAlpha = 0.75;
    c.fillRect(x, top, Math.max(width, 0.6), height);
    c.globalAlpha = 1;
    return 0;
  }
  const table = laneTables.ready(laneOf[i]);
  if (!table) {
    Promise.all([laneTables.load(laneOf[i]), loadGrid(i)]).then(() => lanesView.redraw());
    return 0;
  }
  c.fillStyle = INK.idle;
  c.fillRect(x, top, width, height);
  c.fillStyle = launchColour(i);
  if (table.share) drawShares(c, table, x);
  else if (!table.sm || table.tiles > left || width * height < table.tiles) drawLoad(c, table, x);
  else return drawTiles(c, table, x);
  aggregation.any = true;
  return 0;
}
var TENTH_NS = 0.1;
var lanesOf = (table, t) => Array.from({ length: table.cluster ?? 1 }, (_, k) => [
  (table.sm[t] + k) % rowCount,
  table.slot[t] + Math.floor((table.sm[t] + k) / rowCount)
]);
function drawTiles(c, table, x) {
  const { kx, ky } = lanesView.view;
  const [top, right] = [lanesView.toScreen(0, 0)[1], lanesView.width];
  const { left } = lanesView.margin;
  const high = ky / table.slots;
  const shown = high > 4 ? high - 1 : Math.max(high, Math.min(ky / 2, 1));
  let drawn = 0;
  for (let t = 0; t < table.tiles; t++) {
    const from = x + table.begin[t] * TENTH_NS * kx;
    const wide = table.life[t] * TENTH_NS * kx;
    if (from > right || from + wide < left) continue;
    for (const [sm, slot] of table.cluster > 1 ? lanesOf(table, t) : [[table.sm[t], table.slot[t]]]) {
      const y = top + sm * ky + slot * high;
      if (y > lanesView.height || y + high < lanesView.margin.top) continue;
      c.fillRect(from, y, Math.max(wide - (wide > 8 ? 1 : 0), 0.5), shown);
      drawn++;
    }
  }
  return drawn;
}
function drawLoad(c, table, x) {
  table.load ??= loadOf(table);
  const { load, span } = table.load;
  const top = lanesView.toScreen(0, 0)[1];
  const height = rowCount * lanesView.view.ky;
  const wide = span * lanesView.view.kx / load.length;
  load.forEach((share2, k) => {
    c.globalAlpha = share2;
    c.fillRect(x + k * wide, top, wide + 0.3, height);
  });
  c.globalAlpha = 1;
}
function loadOf(table) {
  const bins = 60;
  const load = new Float64Array(bins);
  if (!table.sm) return { load, span: 1 };
  let span = 1e-9;
  for (let t = 0; t < table.tiles; t++) span = Math.max(span, table.begin[t] + table.life[t]);
  for (let t = 0; t < table.tiles; t++) {
    const [from, to] = [table.begin[t] / span * bins, (table.begin[t] + table.life[t]) / span * bins];
    for (let k = Math.floor(from); k < Math.min(to, bins); k++) load[k] += Math.min(to, k + 1) - Math.max(from, k);
  }
  return {
    load: load.map((v) => Math.min(v * (table.cluster ?? 1) / (rowCount * table.slots), 1)),
    span: span * TENTH_NS
  };
}
function drawShares(c, table, x, first = 0) {
  const { kx, ky } = lanesView.view;
  const top = lanesView.toScreen(0, first)[1];
  const wide = table.end * kx / table.bins;
  for (let row2 = 0; row2 < table.rows; row2++) {
    for (let k = 0; k < table.bins; k++) {
      const share2 = table.share[row2 * table.bins + k];
      if (!share2) continue;
      c.globalAlpha = share2 / 100;
      c.fillRect(x + k * wide, top + row2 * ky, wide + 0.3, ky);
    }
  }
  c.globalAlpha = 1;
}
function tileBox(launch, tile) {
  const table = laneTables.ready(laneOf[launch]);
  if (!table?.sm) return null;
  const { kx, ky } = lanesView.view;
  const high = ky / table.slots;
  const [x, y] = lanesView.toScreen(startOf(launch) + table.begin[tile] * TENTH_NS, table.sm[tile]);
  return { x, y: y + table.slot[tile] * high, w: Math.max(table.life[tile] * TENTH_NS * kx, 2), h: Math.max(high, 2) };
}
function drawFlow(c, boxOf2 = tileBox) {
  const here = state.tile && boxOf2(...state.tile);
  if (!here) return;
  c.lineWidth = 1.2;
  c.globalAlpha = laneFlow.count > 40 ? 0.45 : 0.85;
  for (const [launch, tile, reuse] of laneFlow.parents)
    drawArrow(c, boxOf2(launch, tile), here, reuse ? INK.reuse : INK.producer);
  for (const [launch, tile, reuse] of laneFlow.children)
    drawArrow(c, here, boxOf2(launch, tile), reuse ? INK.reuse : INK.consumer);
  c.globalAlpha = 1;
  c.lineWidth = 2;
  c.strokeStyle = INK.arrow;
  c.strokeRect(here.x - 1, here.y - 1, Math.max(here.w, 2) + 2, Math.max(here.h, 2) + 2);
}
function drawArrow(c, a, b, colour) {
  if (!a || !b) return;
  const [x0, y0, x1, y1] = [a.x + a.w, a.y + a.h / 2, b.x, b.y + b.h / 2];
  const bend = Math.max(Math.abs(x1 - x0) / 2, 18);
  c.strokeStyle = c.fillStyle = colour;
  c.beginPath();
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 4, y1);
  c.stroke();
  c.beginPath();
  c.moveTo(x1, y1);
  c.lineTo(x1 - 7, y1 - 3.5);
  c.lineTo(x1 - 7, y1 + 3.5);
  c.fill();
}
function sayLanes() {
  const measured = doc.summary.measured_tiles > 0;
  const says = state.time !== null && launchCount ? [runningWords()] : [measured ? "measured tiles" : "modelled: tiles in dispatch order", "idle slots shaded"];
  if (aggregation.any)
    says.push(
      `aggregated: ${aggregation.simulated ? "bars" : "shades"} are shares of busy slots, zoom in for single tiles`
    );
  if (laneFlow.count > MOST_ARROWS) says.push(`${MOST_ARROWS} of ${number(laneFlow.count)} arrows`);
  else if (state.tile) {
    const [parents, children] = [laneFlow.parents.length, laneFlow.children.length];
    says.push(`tile ${state.tile[1]}: ${plural(parents, "parent")}, ${plural(children, "child", "children")}`);
  }
  if (range.from !== null && rangeWords()) says.unshift(rangeWords());
  if (served.problem) says.unshift(served.problem);
  document.getElementById("lanes-says").textContent = says.join(" · ");
}
function hitLanes(sx, sy) {
  if (!timed || sx < lanesView.margin.left || sy < lanesView.margin.top) return null;
  const [time, row2] = lanesView.toWorld(sx, sy);
  if (row2 >= rowCount) return state.beside ? hitSimulated(time, row2 - simulatedRow()) : null;
  let launch = null;
  for (let i = 0; i < launchCount; i++) {
    if (time < startOf(i) || time > endOf(i)) continue;
    const table = laneTables.ready(laneOf[i]);
    launch ??= { launch: i, tile: null };
    if (!table?.sm) continue;
    const at = (time - startOf(i)) / TENTH_NS;
    for (let t = 0; t < table.tiles; t++) {
      if (at < table.begin[t] || at > table.begin[t] + table.life[t]) continue;
      if (lanesOf(table, t).some(([sm, slot]) => sm === Math.floor(row2) && slot === Math.floor(row2 % 1 * table.slots)))
        return { launch: i, tile: t };
    }
  }
  return launch;
}
function hoverLanes(x, y) {
  if (timed && y >= 0 && y < lanesView.margin.top) return hoverOverview(x, y);
  const hit = x < 0 ? null : hitLanes(x, y);
  if (!hit) return null;
  const { launch, tile } = hit;
  if (tile === null) return [shortKernel(launch), `launch ${launch} · ${shortModule(launch)}`, "no tile here"];
  const table = laneTables.ready(laneOf[launch]);
  loadGrid(launch);
  const when = [table?.begin, table?.life].map((of) => duration((of?.[tile] ?? 0) * TENTH_NS));
  return [
    `${shortKernel(launch)}, tile ${tile} ${coordinates(launch, tile)}`,
    `launch ${launch} · ${shortModule(launch) || text(launches.op, launch)}`,
    table?.sm ? `SM ${table.sm[tile]}, slot ${table.slot[tile]} · begins ${when[0]} into the launch, takes ${when[1]}` : "",
    besideWords(launch, tile)
  ].filter(Boolean);
}
function besideWords(launch, tile) {
  const life = state.beside ? simulatedLife(launch, tile) : null;
  return life ? `${state.beside}: ${duration(life[0])} to ${duration(life[1])}` : "";
}
function clickLanes(x, y) {
  if (timed && y < lanesView.margin.top) return clickOverview(x, y);
  const hit = hitLanes(x, y);
  clearRange();
  if (!hit) return select({});
  const chosen = state.chain ?? state.pair;
  const pair = chosen?.includes(hit.launch) ? state.pair : null;
  const tile = hit.tile === null ? null : [hit.launch, hit.tile];
  if (pair) return select({ pair, chain: state.chain, launch: hit.launch, tile });
  lanesShown = `${hit.launch},${state.beside !== ""}`;
  select({ launch: hit.launch, tile });
}

// viz/scripts/tabs/tensor.js
var MOST_NEAR = 400;
var MOST_SEARCHED = 5e3;
var READS = 1;
var WRITES = 2;
var picture = { key: "", launch: -1, tile: 0, use: -1, axes: null, tensor: null, ranges: [], near: [] };
var wanted = { use: /* @__PURE__ */ new Map(), axes: /* @__PURE__ */ new Map() };
var tensorView = new Surface(document.querySelector("#tensor canvas"), {
  axes: "free",
  draw: drawTensor,
  hover: hoverTensor,
  click: clickTensor,
  margin: { left: 64, top: 34 },
  limits: [1e-6, 60]
});
tensorView.fit = () => {
  if (!picture.tensor) return;
  const [high, wide] = picture.axes.map((axis) => picture.tensor.shape[axis]);
  let kx = Math.min((tensorView.plotWidth - 14) / wide, 48);
  let ky = Math.min((tensorView.plotHeight - 14) / high, 48);
  if (Math.max(high / wide, wide / high) < 4) kx = ky = Math.min(kx, ky);
  tensorView.view = { x: 0, y: 0, kx, ky };
  tensorView.touched = false;
  tensorView.redraw();
};
tensorView.extent = () => picture.tensor ? picture.axes.map((axis) => picture.tensor.shape[axis]).reverse() : [Infinity, Infinity];
tensorView.keep = () => {
  const { view: v, plotWidth: w, plotHeight: h } = tensorView;
  const [wide, high] = tensorView.extent();
  v.x = Math.min(Math.max(v.x, 40 - wide * v.kx), w - 40);
  v.y = Math.min(Math.max(v.y, 40 - high * v.ky), h - 40);
};
function tileNow() {
  if (state.tile) return state.tile;
  const launch = state.pair?.[1] ?? state.launch ?? pairs.consumer[rankedEdges()[0]?.pair] ?? 0;
  return launchCount ? [launch, 0] : null;
}
function itemOf(dtype) {
  if (dtype === "bool") return 1;
  return Math.max(Number(dtype.match(/\d+/)?.[0] ?? 8) / 8, 1 / 8);
}
function tensorOf(use) {
  const list = (column, by) => text(column, use).split(by).filter(Boolean).map(Number);
  const [shape, strides] = [list(uses.shape, "×"), list(uses.strides, ",")];
  const good = shape.length && shape.length === strides.length && shape.every((n) => n > 0);
  if (good) {
    const item = itemOf(text(uses.dtype, use));
    const short2 = shape.length < 2;
    return {
      offset: uses.offset[use],
      item,
      dtype: text(uses.dtype, use),
      shape: short2 ? [1, ...shape] : shape,
      strides: short2 ? [0, ...strides] : strides
    };
  }
  const bytes = Math.max(buffers.bytes[uses.buffer[use]], 1);
  const wide = Math.max(2 ** Math.ceil(Math.log2(Math.sqrt(bytes))), 64);
  return { offset: 0, item: 1, dtype: "", shape: [Math.ceil(bytes / wide), wide], strides: [wide, 1] };
}
var touched = (launch) => usesOf[launch].filter((use) => uses.how[use] > 0).sort((p, q) => uses.how[p] - uses.how[q] || p - q);
function useNow(launch) {
  const all = touched(launch);
  if (all.includes(wanted.use.get(launch))) return wanted.use.get(launch);
  const other = state.pair?.includes(launch) ? state.pair.find((i) => i !== launch) : void 0;
  const bit = launch === state.pair?.[0] ? WRITES : READS;
  const shared = (use, i) => touched(i).some((u) => uses.buffer[u] === uses.buffer[use] && uses.how[u] & 3 - bit);
  const through = other === void 0 ? void 0 : all.find((use) => uses.how[use] & bit && shared(use, other));
  const producers = pairsOf[launch].map((i) => pairs.producer[i]).filter((i) => i !== launch);
  return through ?? all.find((use) => uses.how[use] & READS && producers.some((i) => shared(use, i))) ?? all[0] ?? -1;
}
function axesNow(use, { shape }) {
  const chosen = wanted.axes.get(use);
  if (chosen) return chosen;
  const wide = shape.map((_, axis) => axis).filter((axis) => shape[axis] > 1);
  const last = [.../* @__PURE__ */ new Set([...wide.reverse(), shape.length - 1, shape.length - 2])].slice(0, 2);
  return last.sort((p, q) => p - q);
}
function rangesOf(launch, tile, buffer, bit, tensor) {
  const table = boxTables.ready(boxOf[launch]);
  if (!table?.tile) return [];
  const bound = new Map(usesOf[launch].map((use) => [uses.operand[use], use]));
  const ranges = [];
  for (let row2 = firstRow(table.tile, tile); row2 < table.tile.length && table.tile[row2] === tile; row2++) {
    const use = bound.get(table.operand[row2]);
    const how = table.mode[row2] === 0 ? READS : table.mode[row2] === 1 ? WRITES : READS | WRITES;
    if (use === void 0 || uses.buffer[use] !== buffer || !(how & bit)) continue;
    const levels = [
      [table.count_0[row2], table.stride_0[row2]],
      [table.count_1[row2], table.stride_1[row2]]
    ];
    const offset = uses.offset[use] + table.offset[row2];
    for (const range2 of rangesOfBox({ offset, length: table.length[row2], levels }, tensor)) ranges.push(range2);
  }
  return ranges;
}
function firstRow(tiles, tile) {
  let [low, high] = [0, tiles.length];
  while (low < high) {
    const middle = low + high >> 1;
    if (tiles[middle] < tile) low = middle + 1;
    else high = middle;
  }
  return low;
}
async function nearTiles(launch, tile, buffer, bit) {
  const near = [];
  for (const i of pairsOf[launch]) {
    const other = bit === READS ? pairs.producer[i] : pairs.consumer[i];
    const after = (bit === READS ? pairs.consumer[i] : pairs.producer[i]) === launch;
    const meets = touched(other).some((u) => uses.buffer[u] === buffer && uses.how[u] & 3 - bit);
    if (!after || other === launch || !meets) continue;
    const parts = shownLinks(pairs.producer[i], pairs.consumer[i]);
    const found2 = await Promise.all(parts.map((link) => linkedTiles(link, tile, bit)));
    await loadBoxes(other);
    for (const t of new Set(found2.flat())) if (near.length < MOST_NEAR) near.push([other, t]);
  }
  return near;
}
async function linkedTiles(link, tile, bit) {
  const block = await blocks.load(links.block[link]);
  if (!block.parent) return [];
  if (bit === READS) {
    const set = block.set_of[tile];
    return set < 0 ? [] : [...block.parent.subarray(block.indptr[set], block.indptr[set + 1])];
  }
  const sets = setsWith(block, tile);
  return [...block.set_of.keys()].filter((t) => sets.has(block.set_of[t]));
}
async function showTensor() {
  if (state.tab !== "tensor") return;
  const [launch, tile] = tileNow() ?? [];
  const use = launch === void 0 ? -1 : useNow(launch);
  const tensor = use < 0 ? null : tensorOf(use);
  const axes = tensor && axesNow(use, tensor);
  const key = JSON.stringify([launch, tile, use, axes, showReuse]);
  if (key === picture.key) return tensorView.redraw();
  const same = picture.use === use && String(picture.axes) === String(axes);
  Object.assign(picture, { key, launch: launch ?? -1, tile, use, tensor, axes, ranges: [], near: [], cells: null });
  if (!tensor) return describeTensor();
  await Promise.all([loadBoxes(launch), loadGrid(launch)]);
  if (picture.key !== key) return;
  const bit = uses.how[use] & READS ? READS : WRITES;
  const buffer = uses.buffer[use];
  picture.bit = bit;
  picture.ranges = rangesOf(launch, tile, buffer, bit, tensor);
  picture.cells = cellsOf(picture.ranges, tensor.shape, axes);
  describeTensor();
  if (!same) tensorView.resize();
  if (!same) tensorView.fit();
  tensorView.redraw();
  const near = await nearTiles(launch, tile, buffer, bit);
  if (picture.key !== key) return;
  const place2 = (range2) => range2 && [range2[axes[0]], range2[axes[1]]];
  picture.near = near.map(([other, t]) => ({ launch: other, tile: t, box: place2(hull(rangesOf(other, t, buffer, 3 - bit, tensor))) })).filter((tileNear) => tileNear.box);
  describeTensor();
  tensorView.redraw();
}
function choose(change) {
  change();
  showTensor();
}
function describeTensor() {
  const { launch, tile, use, tensor, axes } = picture;
  const box = document.getElementById("tensor-choice");
  const says = document.getElementById("tensor-says");
  document.getElementById("tensor-axes").replaceChildren(...tensor && picture.cells ? otherAxes() : []);
  if (!tensor) {
    says.textContent = "";
    return box.replaceChildren(document.createTextNode("The bytes of this launch are unknown."));
  }
  const verb = { 1: "reads", 2: "writes", 3: "updates" };
  const words = (u) => [
    verb[uses.how[u]],
    text(buffers.name, uses.buffer[u]) || text(buffers.kind, uses.buffer[u]) || `buffer ${uses.buffer[u]}`,
    text(uses.dtype, u),
    text(uses.shape, u)
  ].join(" ");
  const operand = make(
    "select",
    touched(launch).map((u) => make("option", words(u), { value: u })),
    { "aria-label": "Tensor" }
  );
  operand.value = use;
  operand.addEventListener("change", () => choose(() => wanted.use.set(launch, Number(operand.value))));
  const axis = (k) => {
    const options = tensor.shape.map((size2, a) => make("option", `axis ${a} (${number(size2)})`, { value: a }));
    const made = make("select", options, { "aria-label": k ? "Axis across" : "Axis down" });
    made.value = axes[k];
    made.addEventListener("change", () => {
      const next = Number(made.value) === axes[1 - k] ? [axes[1], axes[0]] : axes.with(k, Number(made.value));
      choose(() => wanted.axes.set(use, next));
    });
    return made;
  };
  const tiles = launches.tiles[launch];
  const step = make("input", "", { type: "number", min: 0, max: tiles - 1, value: tile, "aria-label": "Tile" });
  step.addEventListener("change", () => {
    const next = Math.min(Math.max(Math.round(Number(step.value)) || 0, 0), tiles - 1);
    select({ pair: state.pair, chain: state.chain, launch, tile: [launch, next] });
  });
  const focused = box.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : "";
  box.replaceChildren(
    make("b", `${launch} ${launchName(launch)}`),
    make("label", [document.createTextNode("tile "), step]),
    document.createTextNode(`${coordinates(launch, tile)} of ${number(tiles)}`),
    operand,
    make("label", [document.createTextNode("down "), axis(0)]),
    make("label", [document.createTextNode("across "), axis(1)])
  );
  if (focused) box.querySelector(`[aria-label="${focused}"]`)?.focus();
  const others = picture.near.length;
  const told = picture.bit === READS ? `outlined: ${plural(others, "tile")} that wrote it` : `outlined: ${plural(others, "tile")} that read it`;
  const left = boxOf[launch] < 0 ? ["the boxes of this kernel did not fit in the page: --serve has them"] : [];
  says.textContent = [...left, ...others ? [told] : [], "a click chooses the tile there"].join(" · ");
}
function otherAxes() {
  const { tensor, axes, ranges } = picture;
  const around = hull(ranges);
  const rest = tensor.shape.map((_, axis) => axis).filter((axis) => !axes.includes(axis) && tensor.shape[axis] > 1);
  const parts = rest.map((axis) => {
    const [low, high] = around ? around[axis] : [0, 0];
    const size2 = tensor.shape[axis];
    const svg = svgOf("svg", { viewBox: "0 0 120 9", "aria-hidden": "true" });
    svg.append(svgOf("rect", { width: 120, height: 9, fill: INK.box, stroke: INK.line }));
    const [x, width] = [120 * low / size2, Math.max(120 * (high - low) / size2, 1)];
    svg.append(svgOf("rect", { x, width, height: 9, fill: colourNow() }));
    const part = !around ? "nothing" : high - low === size2 ? `all ${number(size2)}` : high - low === 1 ? `${low}` : `${low} to ${high - 1}`;
    return make("span", [document.createTextNode(`axis ${axis}`), svg, make("b", part)]);
  });
  return parts.length ? [...parts, make("span", "shade: share of these that the tile touches")] : [];
}
var colourNow = () => picture.bit === READS ? INK.consumer : INK.producer;
var nearColour = () => picture.bit === READS ? INK.producer : INK.consumer;
var scratch2 = document.createElement("canvas");
function drawTensor(c) {
  const { tensor, axes, cells } = picture;
  if (!tensor) return sayCentre(c, tensorView, "The trace holds no accesses of this launch.");
  if (!cells) return sayCentre(c, tensorView, "…");
  const { margin: m, view: v } = tensorView;
  const [high, wide] = axes.map((axis) => tensor.shape[axis]);
  c.save();
  c.beginPath();
  c.rect(m.left, m.top, tensorView.plotWidth, tensorView.plotHeight);
  c.clip();
  const [x, y] = tensorView.toScreen(0, 0);
  c.fillStyle = INK.gap;
  c.fillRect(x, y, wide * v.kx, high * v.ky);
  const rgb = [1, 3, 5].map((k) => parseInt(colourNow().slice(k, k + 2), 16));
  const image = new ImageData(cells.wide, cells.high);
  for (let i = 0; i < cells.share.length; i++) {
    if (!cells.share[i]) continue;
    image.data.set(rgb, 4 * i);
    image.data[4 * i + 3] = 85 + 170 * cells.share[i];
  }
  Object.assign(scratch2, { width: cells.wide, height: cells.high });
  scratch2.getContext("2d").putImageData(image, 0, 0);
  c.imageSmoothingEnabled = false;
  c.drawImage(scratch2, x, y, cells.wide * cells.step[1] * v.kx, cells.high * cells.step[0] * v.ky);
  c.strokeStyle = INK.line;
  c.strokeRect(x, y, wide * v.kx, high * v.ky);
  c.strokeStyle = nearColour();
  for (const { box } of picture.near) {
    const [a, b] = [tensorView.toScreen(box[1][0], box[0][0]), tensorView.toScreen(box[1][1], box[0][1])];
    c.lineWidth = picture.near.length > 60 || b[1] - a[1] < 12 ? 0.8 : 1.5;
    c.strokeRect(a[0] + 1, a[1] + 1, Math.max(b[0] - a[0] - 2, 1), Math.max(b[1] - a[1] - 2, 1));
  }
  c.restore();
  drawTensorAxes(c, [high, wide]);
}
function drawTensorAxes(c, [high, wide]) {
  const { margin: m, view: v, width, height } = tensorView;
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.textAlign = "left";
  c.textBaseline = "alphabetic";
  c.fillText(fitted(c, `axis ${picture.axes[1]}: ${number(wide)} →`, width - m.left), m.left, 12);
  c.save();
  c.translate(12, m.top);
  c.rotate(-Math.PI / 2);
  c.textAlign = "right";
  c.fillText(`← axis ${picture.axes[0]}: ${number(high)}`, 0, 0);
  c.restore();
  c.beginPath();
  c.textAlign = "center";
  const across = Math.max(niceStep(46 / v.kx), 1);
  for (let i = 0; i < wide; i += across) {
    const at = tensorView.toScreen(i, 0)[0];
    if (at < m.left - 1 || at > width) continue;
    c.moveTo(at, m.top - 5);
    c.lineTo(at, m.top - 1);
    c.fillText(String(i), at, m.top - 8);
  }
  c.textAlign = "right";
  c.textBaseline = "middle";
  const down = Math.max(niceStep(22 / v.ky), 1);
  for (let i = 0; i < high; i += down) {
    const at = tensorView.toScreen(0, i)[1];
    if (at < m.top - 1 || at > height) continue;
    c.moveTo(m.left - 5, at);
    c.lineTo(m.left - 1, at);
    c.fillText(String(i), m.left - 8, at);
  }
  c.stroke();
}
function elementAt(sx, sy) {
  if (!picture.cells || sx < tensorView.margin.left || sy < tensorView.margin.top) return null;
  const [x, y] = tensorView.toWorld(sx, sy).map(Math.floor);
  const [high, wide] = picture.axes.map((axis) => picture.tensor.shape[axis]);
  return x >= 0 && y >= 0 && x < wide && y < high ? [y, x] : null;
}
function hoverTensor(sx, sy) {
  const at = sx < 0 ? null : elementAt(sx, sy);
  if (!at) return null;
  const { cells, axes, tensor } = picture;
  const index = tensor.shape.map((_, axis) => axis === axes[0] ? at[0] : axis === axes[1] ? at[1] : ":");
  const share2 = cells.share[Math.floor(at[0] / cells.step[0]) * cells.wide + Math.floor(at[1] / cells.step[1])];
  const verb = picture.bit === READS ? "reads" : "writes";
  const behind = tensor.shape.reduce((n, size2, axis) => axes.includes(axis) ? n : n * size2, 1);
  const part = behind > 1 ? `${Math.round(100 * share2)}% of the ${number(behind)} elements here` : "it";
  const lines = [
    `[${index.join(", ")}]`,
    share2 > 0 ? `tile ${picture.tile} ${verb} ${part}` : `tile ${picture.tile} does not touch it`
  ];
  const here = picture.near.filter(({ box: [d, a] }) => at[0] >= d[0] && at[0] < d[1] && at[1] >= a[0] && at[1] < a[1]);
  if (here.length) {
    const names = here.slice(0, 6).map((n) => `${n.tile} of launch ${n.launch}`);
    const more = here.length > 6 ? ` and ${here.length - 6} more` : "";
    lines.push(`${picture.bit === READS ? "written" : "read"} by tile ${names.join(", ")}${more}`);
  }
  return lines;
}
function clickTensor(sx, sy) {
  const at = elementAt(sx, sy);
  if (!at) return;
  const { launch, use, tensor, axes, bit } = picture;
  let [best, nearest] = [-1, Infinity];
  for (let tile = 0; tile < Math.min(launches.tiles[launch], MOST_SEARCHED); tile++) {
    const around = hull(rangesOf(launch, tile, uses.buffer[use], bit, tensor));
    if (!around) continue;
    const off = axes.map((axis, k) => at[k] + 0.5 - (around[axis][0] + around[axis][1]) / 2);
    const inside = axes.every((axis, k) => at[k] >= around[axis][0] && at[k] < around[axis][1]);
    const distance = Math.hypot(...off);
    if (inside && distance < nearest) [best, nearest] = [tile, distance];
  }
  if (best >= 0) select({ pair: state.pair, chain: state.chain, launch, tile: [launch, best] });
}

// viz/scripts/tabs/launches.js
var anyGain = pairs.gain_ns.some((g) => g > 0);
var hiddenPatterns = /* @__PURE__ */ new Set();
var showReuse = false;
var widthBy = "bytes";
var drawing;
var hovered = null;
var longest = 1;
for (let i = 0; i < launchCount; i++) longest = Math.max(longest, launches.duration_ns[i]);
var LEAST_SCALE = 0.5;
var EDGE = 4;
var TEXT = 11;
var font = (weight, size2) => `${weight} ${Math.max(size2, TEXT / graphView.view.kx)}px ${FONT}`;
var graphView = new Surface(document.querySelector("#graph canvas"), {
  axes: "both",
  draw: drawGraph,
  hover: hoverGraph,
  click: clickGraph,
  take: moveByMap,
  limits: [LEAST_SCALE, 4]
});
graphView.fit = () => {
  if (!drawing?.nodes.length) return;
  const { width, height } = graphView;
  if (Math.abs(width - drawing.laidFor) > 40) layOutFor(width);
  const k = scaleNow(width, height);
  const first = drawing.nodes.reduce((a, b) => b.ay < a.ay ? b : a);
  const spare = width - drawing.width * k;
  const x = spare >= 0 ? spare / 2 : Math.min(Math.max(width / 2 - (first.ax + first.w / 2) * k, spare), 0);
  graphView.view = { kx: k, ky: k, x, y: Math.max((height - drawing.height * k) / 2, EDGE) };
  graphView.touched = false;
  graphView.redraw();
};
graphView.extent = () => [drawing.width, drawing.height];
function rebuildGraph() {
  drawing = buildDrawing();
  layOutFor(graphView.width);
  drawing.flat = drawing.nodes.some((node) => node.module) ? buildDrawing(true) : drawing;
  sayGraph();
  graphView.redraw();
}
function layOutFor(width) {
  const lay = (wide) => {
    for (const node of drawing.nodes) node.w = wide;
    layOut(drawing);
  };
  lay(NODE.least);
  drawing.laidFor = width;
  const rows = /* @__PURE__ */ new Map();
  for (const node of drawing.nodes) rows.set(node.ay, (rows.get(node.ay) ?? 0) + 1);
  const [room, base] = [width / scaleNow(width, graphView.height), drawing.width];
  const spare = (room - base) / Math.max(1, ...rows.values());
  if (spare <= 10) return;
  lay(Math.min(NODE.least + spare, NODE.most));
  const grown = drawing.width - base;
  if (drawing.width > room) lay(NODE.least + (drawing.nodes[0].w - NODE.least) * (room - base) / grown);
}
var scaleNow = (width, height) => Math.min(Math.max(Math.min(width / drawing.width, (height - 2 * EDGE) / drawing.height), LEAST_SCALE), 1.1);
function sayGraph() {
  const folded = drawing.boxes.some((b) => !b.open);
  const hidden = pairs.reuse_only.reduce((n, r) => n + (r && !showReuse ? 1 : 0), 0);
  const says = [plural(launchCount, "launch", "launches"), plural(pairCount - hidden, "pair")];
  const modules = drawing.nodes.filter((node) => node.module).length;
  if (modules) says.push(`${plural(modules, "module")} folded: a click opens one`);
  if (folded) says.push("repeated layers folded");
  if (hidden) says.push(`${number(hidden)} from memory reuse hidden`);
  document.getElementById("graph-says").textContent = says.join(" · ");
}
function showNode(launch) {
  graphView.resize();
  const node = nodeFor(launch);
  const { view, width, height } = graphView;
  const [x, y] = graphView.toScreen(node.ax + node.w / 2, node.ay + node.h / 2);
  if (x > 60 && x < width - 60 && y > 40 && y < height - 40) return;
  view.x += width / 2 - x;
  view.y += height / 2 - y;
  graphView.moved();
}
function moveByMap(x, y) {
  return moveByMapOf(graphView, drawing, x, y);
}
function drawGraph(c) {
  if (!launchCount) return sayCentre(c, graphView, "This trace holds no launches.");
  const { view, width, height } = graphView;
  const [left, top] = graphView.toWorld(0, 0);
  const [right, bottom] = graphView.toWorld(width, height);
  const seen = (x, y, w, h) => x < right && x + w > left && y < bottom && y + h > top;
  c.save();
  c.translate(view.x, view.y);
  c.scale(view.kx, view.kx);
  for (const box of drawing.boxes) if (seen(box.ax - 12, box.ay, box.w + 24, box.h)) drawBox(c, box);
  const chosen = state.pair ? pairAt.get(state.pair.join(",")) : -1;
  for (const edge of drawing.edges) {
    const p = edge.path;
    if (seen(p.left, p.top, p.right - p.left, p.bottom - p.top)) drawEdge(c, edge, edge.pairs.includes(chosen));
  }
  for (const node of drawing.nodes) if (seen(node.ax, node.ay, node.w, node.h)) drawNode(c, node);
  for (const box of drawing.boxes) if (seen(box.ax, box.ay, box.w, GAP.head)) drawBoxName(c, box);
  c.restore();
  drawMap(c, graphView, drawing);
}
function sayCentre(c, view, words) {
  c.font = `13px ${FONT}`;
  c.fillStyle = INK.soft;
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.fillText(words, view.width / 2, view.height / 2);
}
function drawBox(c, box) {
  const card = (d) => {
    c.beginPath();
    c.roundRect(box.ax + d, box.ay - d, box.w, box.h, 10);
    c.fillStyle = INK.box;
    c.strokeStyle = INK.line;
    c.lineWidth = 1.2;
    c.fill();
    c.stroke();
  };
  for (let k = box.open ? 0 : 2; k >= 0; k--) card(k * 4);
}
function drawBoxName(c, box) {
  c.textBaseline = "middle";
  c.textAlign = "left";
  c.font = font(600, 13);
  c.fillStyle = hovered === box ? INK.focus : INK.ink;
  const count = box.module ? "  ▾ fold" : box.open ? ` ${box.copy + 1} of ${box.count}  ▾ fold` : ` ×${box.count}  ▸ open`;
  const name = box.module ?? (commonModule(box.begin, box.begin + box.period) || plural(box.period, "launch", "launches"));
  const countWidth = c.measureText(count).width;
  const head = fitted(c, name, box.w - 24 - countWidth);
  const width = c.measureText(head + count).width;
  const x = Math.min(Math.max(box.ax + 12, 12 - graphView.view.x / graphView.view.kx), box.ax + box.w - 12 - width);
  c.save();
  c.fillStyle = INK.box;
  c.globalAlpha = 0.85;
  c.fillRect(x - 4, box.ay + 7, width + 8, 20);
  c.restore();
  c.fillText(head + count, x, box.ay + 17);
}
function edgeWidth(edge) {
  const value = (e) => Math.log1p(widthBy === "gain" ? e.gain : e.bytes);
  drawing.widest ??= {
    bytes: Math.max(1, ...drawing.edges.map((e) => Math.log1p(e.bytes))),
    gain: Math.max(1, ...drawing.edges.map((e) => Math.log1p(e.gain)))
  };
  const share2 = value(edge) / drawing.widest[widthBy];
  return 1 + 4.5 * share2 ** 3;
}
function drawEdge(c, edge, chosen) {
  const name = doc.strings[pairs.pattern[edge.pair]];
  const touches = state.launch === null || edge.a === nodeFor(state.launch) || edge.b === nodeFor(state.launch);
  const lit = chosen || hovered === edge;
  c.globalAlpha = lit ? 1 : state.pair ? 0.3 : touches ? 0.85 : 0.22;
  const misses = edge.pairs.some(missesSome);
  c.strokeStyle = c.fillStyle = misses ? INK.missing : patternColour(name);
  c.lineWidth = edgeWidth(edge) + (lit || misses ? 2 : 0);
  c.setLineDash(pairs.reuse_only[edge.pair] ? [1, 4] : DASHES[name] ?? []);
  c.stroke(edge.path.path);
  c.setLineDash([]);
  if (graphView.view.kx > 0.3) {
    const [x, y] = edge.path.end;
    const r = 3 + c.lineWidth * 0.8;
    c.beginPath();
    c.moveTo(x, y + 1);
    c.lineTo(x - r * 0.8, y - r * 1.5);
    c.lineTo(x + r * 0.8, y - r * 1.5);
    c.fill();
  }
  c.globalAlpha = 1;
}
var nodeFor = (launch) => drawing.nodes[drawing.nodeOf[launch]];
function nodeFrame(node) {
  if (state.pair && nodeFor(state.pair[0]) === node) return [INK.producer, 2.6];
  if (state.pair && nodeFor(state.pair[1]) === node) return [INK.consumer, 2.6];
  if (state.launch !== null && nodeFor(state.launch) === node) return [INK.focus, 2.6];
  return [hovered === node ? INK.soft : INK.line, 1.3];
}
function drawStack(c, { ax: x, ay: y, w, h }) {
  c.beginPath();
  c.roundRect(x + 4, y - 4, w, h, 7);
  c.fillStyle = INK.box;
  c.fill();
  c.strokeStyle = INK.line;
  c.lineWidth = 1.3;
  c.stroke();
}
function drawNode(c, node) {
  const i = node.launch;
  const { ax: x, ay: y, w, h } = node;
  const [frame, thick] = nodeFrame(node);
  c.globalAlpha = state.search && !isFound(node) && thick < 2 ? 0.4 : 1;
  if (node.module) drawStack(c, node);
  c.beginPath();
  c.roundRect(x, y, w, h, 7);
  c.fillStyle = state.search && isFound(node) ? INK.found : INK.node;
  c.fill();
  c.strokeStyle = frame;
  c.lineWidth = thick;
  c.setLineDash(launches.coverage[i] === 2 ? [5, 3] : []);
  c.stroke();
  c.setLineDash([]);
  c.fillStyle = INK.focus;
  const took = node.duration_ns ?? launches.duration_ns[i];
  c.fillRect(x + 8, y + h - 5, Math.max((w - 16) * Math.min(took / longest, 1), 1), 2.5);
  const both = graphView.view.kx > 0.85;
  c.textBaseline = both ? "alphabetic" : "middle";
  const line = y + (both ? 18 : h / 2 - 1);
  c.textAlign = "right";
  c.font = font(400, 11);
  c.fillStyle = INK.soft;
  const time = duration(took);
  const timeWide = c.measureText(time).width;
  const name = node.module ? `▸ ${nameInside(node)}` : launchName(i);
  c.font = font(600, 12);
  const told = both || c.measureText(name).width < w - 26 - timeWide;
  c.font = font(400, 11);
  if (told) c.fillText(time, x + w - 9, line);
  c.textAlign = "left";
  const place2 = node.module ? `${plural(node.period, "launch", "launches")}, opened by a click` : launchPlace(i);
  if (both) c.fillText(fitted(c, place2, w - 18), x + 9, y + 34);
  c.font = font(600, 12);
  c.fillStyle = INK.ink;
  c.fillText(fitted(c, name, told ? w - 26 - timeWide : w - 18), x + 9, line);
  c.globalAlpha = 1;
}
function nameInside({ module, parent }) {
  const around = parent.parent ? parent.module ?? commonModule(parent.begin, parent.begin + parent.period) : "";
  return around && module.startsWith(`${around}.`) ? module.slice(around.length + 1) : module;
}
function isFound(node) {
  drawing.found ??= new Set([...found].map((i) => drawing.nodeOf[i]));
  return drawing.found.has(node.index);
}
function hitGraph(sx, sy) {
  const [x, y] = graphView.toWorld(sx, sy);
  const inside = (b, h) => x >= b.ax && x <= b.ax + b.w && y >= b.ay && y <= b.ay + h;
  const node = drawing.nodes.find((n) => inside(n, n.h));
  if (node) return node;
  const reach = 6 / graphView.view.kx;
  let best = null;
  let nearest = reach * reach;
  for (const edge of drawing.edges) {
    const p = edge.path;
    if (x < p.left - reach || x > p.right + reach || y < p.top - reach || y > p.bottom + reach) continue;
    for (let k = 1; k < p.samples.length; k++) {
      const d = segmentDistance(x, y, p.samples[k - 1], p.samples[k]);
      if (d < nearest) [nearest, best] = [d, edge];
    }
  }
  return best ?? drawing.boxes.findLast((b) => inside(b, GAP.head)) ?? null;
}
function segmentDistance(x, y, [px, py], [qx, qy]) {
  const [dx, dy] = [qx - px, qy - py];
  const t = Math.max(0, Math.min(1, ((x - px) * dx + (y - py) * dy) / (dx * dx + dy * dy || 1)));
  return (px + t * dx - x) ** 2 + (py + t * dy - y) ** 2;
}
function hoverGraph(x, y) {
  const now = x < 0 ? null : hitGraph(x, y);
  if (now !== hovered) {
    hovered = now;
    graphView.canvas.style.cursor = now ? "pointer" : "grab";
    graphView.redraw();
  }
  if (!now) return null;
  if (now.boxed && now.module) return [`Fold ${now.module}`, plural(now.period, "launch", "launches")];
  if (now.boxed)
    return [
      now.open ? "Fold all copies into one" : `Open all ${now.count} copies`,
      `${now.period} launches in each copy`
    ];
  if (now.module)
    return [
      now.module,
      `${plural(now.period, "launch", "launches")} · ${duration(now.duration_ns)}`,
      "a click opens it"
    ];
  return "launch" in now ? launchLines(now.launch, now.count) : edgeLines(now);
}
function launchLines(i, copies = 1) {
  const like = copies > 1 ? ` (and ${copies - 1} like it)` : "";
  const lines = [
    text(launches.kernel, i) || `launch ${i}`,
    [text(launches.op, i), text(launches.module, i)].filter(Boolean).join(" in "),
    `launch ${i}${like} · grid ${times(grid(i))} · ${plural(launches.tiles[i], "tile")} · ${wavesWords(i)} waves`,
    `${duration(launches.duration_ns[i])} ${TIMINGS[launches.timing[i]]} · accesses ${COVERAGES[launches.coverage[i]]}`
  ];
  const note = text(launches.note, i);
  return [...lines, note].filter(Boolean);
}
function edgeLines(edge) {
  const i = edge.pair;
  const lines = [
    `${launchName(pairs.producer[i])} → ${launchName(pairs.consumer[i])}`,
    `${doc.strings[pairs.pattern[i]]} · ${hazardWords(i)} · ${number(shownEdges(i))} edges · ${size(pairs.bytes[i])}`
  ];
  if (pairs.gain_ns[i] > 0) lines.push(`could gain up to ${duration(pairs.gain_ns[i])}`);
  if (edge.pairs.some(missesSome)) lines.push("the policy misses waits here");
  if (pairs.reuse_only[i]) lines.push("only because the allocator reused memory");
  if (edge.around) lines.push("from one copy of the layer to a later one");
  if (edge.pairs.length > 1) lines.push(`${number(edge.pairs.length)} pairs, ${size(edge.bytes)}`);
  return lines;
}
function hazardWords(i) {
  const names = [
    ["RAW", pairs.raw[i]],
    ["WAR", pairs.war[i]],
    ["WAW", pairs.waw[i]]
  ];
  return names.filter(([, n]) => n > 0).map(([name]) => name).join(" ") || "no hazard";
}
function clickGraph(x, y) {
  const hit = hitGraph(x, y);
  if (!hit) return select({});
  if (hit.boxed || hit.module) return toggleGroup(hit);
  if ("launch" in hit) return select({ launch: hit.launch });
  const i = hit.pairs.find((p) => overlayOf.has(p)) ?? hit.pair;
  select({ pair: [pairs.producer[i], pairs.consumer[i]] });
}
function toggleGroup(box) {
  const before = graphView.toScreen(box.ax, box.ay);
  if (state.open.has(box.group)) state.open.delete(box.group);
  else state.open.add(box.group);
  if (box.open && !box.module) state.copies[box.group] = box.copy;
  changed();
  const drawn = [...drawing.boxes, ...drawing.nodes].filter((b) => b.group === box.group);
  const again = drawn.find((b) => b.copy === box.copy) ?? drawn[0] ?? drawing.root;
  const after = graphView.toScreen(again.ax, again.ay);
  graphView.pan(before[0] - after[0], before[1] - after[1]);
}
function walkGraph(key) {
  if (!launchCount) return;
  if (state.launch === null) return select({ launch: 0 });
  const here = state.launch;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next2 = here + (key === "ArrowLeft" ? -1 : 1);
    return select({ launch: Math.min(Math.max(next2, 0), launchCount - 1) });
  }
  const next = heaviestPair(here, key === "ArrowUp" ? "consumer" : "producer");
  if (next >= 0) select({ launch: key === "ArrowUp" ? pairs.producer[next] : pairs.consumer[next] });
}
function heaviestPair(launch, role) {
  let best = -1;
  for (const i of pairsOf[launch]) {
    if (pairs[role][i] === launch && shownPair(i) && (best < 0 || pairs.bytes[i] > pairs.bytes[best])) best = i;
  }
  return best;
}
function buildLegend() {
  const counts = /* @__PURE__ */ new Map();
  for (let i = 0; i < pairCount; i++) {
    if (pairs.reuse_only[i] && !showReuse) continue;
    const name = doc.strings[pairs.pattern[i]];
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const known = Object.keys(PALETTE.light.patterns);
  const names = [...counts.keys()].sort((a, b) => known.indexOf(a) - known.indexOf(b));
  const buttons = names.map((name) => {
    const button = make("button", [patternMark(name), `${name} ${counts.get(name)}`], {
      type: "button",
      "aria-pressed": String(!hiddenPatterns.has(name)),
      title: "Show or hide"
    });
    button.addEventListener("click", () => {
      if (!hiddenPatterns.delete(name)) hiddenPatterns.add(name);
      filtersChanged();
    });
    return button;
  });
  const reused = [...linksOf.values()].filter((of) => of.some((link) => links.reuse[link])).length;
  if (reused) {
    const button = make("button", `memory reuse ${number(reused)}`, {
      type: "button",
      "aria-pressed": String(showReuse),
      title: "Hazards that exist only because the allocator handed memory out again, and how many pairs have some"
    });
    button.addEventListener("click", toggleReuse);
    buttons.push(button);
  }
  if (anyGain) {
    const button = make("button", `width by ${widthBy}`, { type: "button", title: "Edge width by bytes or by gain" });
    button.addEventListener("click", () => {
      widthBy = widthBy === "bytes" ? "gain" : "bytes";
      filtersChanged();
    });
    buttons.push(button);
  }
  const marks = doc.summary.coverage.conservative ? [make("span", "dashed frame: conservative", { class: "says" })] : [];
  document.getElementById("legend").replaceChildren(...buttons, ...marks);
}
function toggleReuse() {
  showReuse = !showReuse;
  filtersChanged();
}
function filtersChanged() {
  buildLegend();
  rebuildGraph();
  showMatrix();
  showTiles();
  showTensor();
  showLanes();
}
function describeLaunch() {
  const panel = document.getElementById("launch");
  const i = state.launch;
  panel.hidden = i === null;
  if (i === null) return;
  const rows = [
    ["op", text(launches.op, i)],
    ["module", text(launches.module, i)],
    ["grid", times(grid(i))],
    ["block", times([launches.block_x[i], launches.block_y[i], launches.block_z[i]])],
    ["tiles", number(launches.tiles[i])],
    ["waves", `${wavesWords(i)} (${plural(deviceSlots(i), "slot")})`],
    ["time", `${duration(launches.duration_ns[i])} ${TIMINGS[launches.timing[i]]}`],
    ["accesses", COVERAGES[launches.coverage[i]]],
    ["shared", size(launches.shared_bytes[i])],
    ["registers", number(launches.registers[i])]
  ];
  const list = make(
    "dl",
    rows.filter(([, v]) => v).flatMap(([k, v]) => [make("dt", k), make("dd", v)])
  );
  const parts = [make("h3", `${i}  ${shortKernel(i)}`), list];
  const kernel = text(launches.kernel, i);
  if (kernel && kernel !== shortKernel(i)) parts.splice(1, 0, make("p", kernel, { class: "full" }));
  if (text(launches.note, i)) parts.push(make("p", text(launches.note, i), { class: "mark" }));
  panel.replaceChildren(...parts);
}

// viz/scripts/fold.js
var NODE = { width: 196, least: 196, most: 330, height: 46 };
function reveal(launch, items = doc.fold, base = 0, path = "") {
  items.forEach((item, k) => {
    const from = base + item.start;
    if ("launch" in item || launch < from || launch >= from + item.period * item.count) return;
    const copy = Math.floor((launch - from) / item.period);
    state.copies[path + k] = copy;
    reveal(launch, item.items, from + copy * item.period, `${path + k}.`);
  });
}
function buildDrawing(unfolded = false) {
  const drawing2 = {
    unfolded,
    root: { children: [], boxed: true },
    nodes: [],
    boxes: [],
    nodeOf: new Int32Array(launchCount),
    copyOf: []
  };
  fill(drawing2, drawing2.root, doc.fold, [{ at: 0, copies: [] }], 0, "", []);
  drawing2.edges = mergePairs(drawing2);
  return drawing2;
}
function fill(drawing2, parent, items, stands, shown, path, closed) {
  items.forEach((item, k) => {
    if ("launch" in item) {
      const node = {
        launch: stands[shown].at + item.launch,
        parent,
        index: drawing2.nodes.length,
        closed,
        w: NODE.width,
        h: NODE.height,
        count: stands.length
      };
      drawing2.nodes.push(node);
      parent.children.push(node);
      for (const { at: at2, copies } of stands) {
        drawing2.nodeOf[at2 + item.launch] = node.index;
        drawing2.copyOf[at2 + item.launch] = copies;
      }
      return;
    }
    const id = path + k;
    if ("module" in item && !drawing2.unfolded && !state.open.has(id)) {
      addModule(drawing2, { item, id, parent, closed }, stands, shown);
      return;
    }
    const at = (stand, copy2) => stand.at + item.start + copy2 * item.period;
    const add = (copy2, open, inner, innerShown) => {
      const box = {
        boxed: true,
        children: [],
        parent,
        group: id,
        copy: copy2,
        open,
        count: item.count,
        period: item.period,
        begin: at(stands[shown], copy2),
        module: item.module
      };
      drawing2.boxes.push(box);
      parent.children.push(box);
      fill(drawing2, box, item.items, inner, innerShown, `${id}.`, open ? closed : [...closed, box]);
    };
    if (state.open.has(id) || "module" in item) {
      for (let c = 0; c < item.count; c++)
        add(
          c,
          true,
          stands.map((s) => ({ at: at(s, c), copies: s.copies })),
          shown
        );
      return;
    }
    const copy = Math.min(state.copies[id] ?? 0, item.count - 1);
    const all = stands.flatMap(
      (s) => Array.from({ length: item.count }, (_, c) => ({ at: at(s, c), copies: [...s.copies, c] }))
    );
    add(copy, false, all, shown * item.count + copy);
  });
}
function addModule(drawing2, { item, id, parent, closed }, stands, shown) {
  const launch = stands[shown].at + item.start;
  const node = {
    launch,
    parent,
    index: drawing2.nodes.length,
    closed,
    w: NODE.width,
    h: NODE.height,
    count: stands.length,
    module: item.module,
    group: id,
    period: item.period,
    duration_ns: launches.duration_ns.slice(launch, launch + item.period).reduce((sum, ns) => sum + ns, 0)
  };
  drawing2.nodes.push(node);
  parent.children.push(node);
  for (const { at, copies } of stands) {
    for (let i = at + item.start; i < at + item.start + item.period; i++) {
      drawing2.nodeOf[i] = node.index;
      drawing2.copyOf[i] = copies;
    }
  }
}
var shownLink = (link) => showReuse || !links.reuse[link];
var shownLinks = (from, to) => (linksOf.get(`${from},${to}`) ?? []).filter(shownLink);
var shownEdges = (i) => showReuse ? pairs.edges[i] : pairs.raw[i] || pairs.war[i] + pairs.waw[i];
var shownPair = (i) => !hiddenPatterns.has(doc.strings[pairs.pattern[i]]) && (showReuse || !pairs.reuse_only[i]);
function mergePairs({ nodes, nodeOf, copyOf }) {
  const edges = /* @__PURE__ */ new Map();
  for (let i = 0; i < pairCount; i++) {
    if (!shownPair(i)) continue;
    const [from, to] = [pairs.producer[i], pairs.consumer[i]];
    const [a, b] = [nodes[nodeOf[from]], nodes[nodeOf[to]]];
    let around = null;
    for (let k = 0; k < a.closed.length && a.closed[k] === b.closed[k] && !around; k++) {
      if (copyOf[from][k] !== copyOf[to][k]) around = a.closed[k];
    }
    if (a === b && !around) continue;
    const key = `${a.index},${b.index},${around ? 1 : 0}`;
    if (!edges.has(key)) edges.set(key, { a, b, around, pairs: [], bytes: 0, gain: 0, pair: i });
    const edge = edges.get(key);
    edge.pairs.push(i);
    edge.bytes += pairs.bytes[i];
    edge.gain += pairs.gain_ns[i] || 0;
    const drawn = from === a.launch && to === b.launch;
    if (drawn || around && to === b.launch) edge.pair = i;
  }
  return [...edges.values()];
}
function commonModule(begin, end) {
  let common = null;
  for (let i = begin; i < end; i++) {
    const parts = text(launches.module, i).split(".");
    if (common === null) common = parts;
    let same = 0;
    while (same < common.length && common[same] === parts[same]) same++;
    common = common.slice(0, same);
  }
  return (common ?? []).join(".");
}

// viz/scripts/server_requests.js
var numbersOfBlocks;
async function askServer(what, of) {
  const answer = await fetch(`${what}?of=${encodeURIComponent(of)}`).catch(() => {
    throw new Error("the server has ended (start it again: tileprof view --serve)");
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
function askingForm(fields, label, ask) {
  const says = make("span", "", { class: "soft", role: "status" });
  const form = make("form", [
    ...fields.flatMap((f) => [f, document.createTextNode(" ")]),
    make("button", label, { type: "submit" }),
    document.createTextNode(" "),
    says
  ]);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    says.textContent = "…";
    try {
      await ask();
      changed();
    } catch (error) {
      says.textContent = error.message;
    }
  });
  return form;
}
var simulateAndAdd = async (text2) => addSchedule(await askServer("simulate", text2));
function addSchedule(schedule) {
  if (doc.schedules.some((s) => s.name === schedule.name)) return;
  doc.schedules.push(schedule);
  scheduleLanes.push(schedule.lanes);
  fillBeside();
}
function placeTheRest(places, tables) {
  const placeOfFootprint = /* @__PURE__ */ new Map();
  for (let i = 0; i < launchCount; i++) {
    if (places[i] >= 0) continue;
    const footprint = launches.footprint[i];
    if (!placeOfFootprint.has(footprint)) placeOfFootprint.set(footprint, tables.push({}) - 1);
    places[i] = placeOfFootprint.get(footprint);
  }
}
function serve() {
  numbersOfBlocks = unpack(doc.block_numbers);
  served.block = async (i) => askServer("block", (await numbersOfBlocks)[i]);
  served.lanes = (i) => askServer("lanes", laneOf.indexOf(i));
  served.grid = (i) => askServer("grid", gridOf.indexOf(i));
  served.variant = (text2) => askServer("variant", text2);
  served.size = (text2) => askServer("size", text2);
  served.boxes = (i) => askServer("boxes", boxOf.indexOf(i));
  placeTheRest(gridOf, doc.grids);
  placeTheRest(boxOf, doc.boxes);
  served.runner = () => {
    const box = make("input", "", {
      type: "text",
      placeholder: "scheduler:option=value,…   for example list",
      "aria-label": "A scheduler and its options",
      id: "wanted",
      size: 38
    });
    return askingForm([box], "Simulate", () => simulateAndAdd(box.value.trim()));
  };
  served.show = () => askingForm([], "Show in the timeline", async () => {
    const text2 = runKey(whatIf).split("@")[0];
    await simulateAndAdd(text2);
    state.beside = text2;
  });
  served.besides = async (text2) => {
    try {
      await simulateAndAdd(text2);
      chooseBeside(text2);
    } catch (error) {
      served.problem = `${text2}: ${error.message}`;
      changed();
    }
  };
}

// viz/scripts/tabs/advice.js
var MOST_ADVICE = 6;
function showAdvice() {
  const box = document.getElementById("advice");
  const { guidance } = doc;
  if (!guidance || !launchCount) return;
  box.hidden = false;
  const fold = make("button", "", { type: "button", id: "fold-advice", title: "Show or hide what to do first (h)" });
  fold.addEventListener("click", toggleAdvice);
  const { sentence } = guidance.verdict;
  box.replaceChildren(
    make("h2", [make("span", `${sentence[0].toUpperCase() + sentence.slice(1)}.`), fold]),
    make("ol", guidance.actions.slice(0, MOST_ADVICE).map(adviceRow)),
    schedulesTable(guidance.schedules)
  );
  foldAdvice(kept("advice") === "folded" || kept("advice") === null && innerHeight < 700);
}
function toggleAdvice() {
  const folded = !document.getElementById("advice").classList.contains("folded");
  keep("advice", folded ? "folded" : "open");
  foldAdvice(folded);
  for (const view of Object.values(panels)) view.resize();
}
function foldAdvice(folded) {
  const box = document.getElementById("advice");
  box.classList.toggle("folded", folded);
  const button = document.getElementById("fold-advice");
  if (!button) return;
  button.textContent = folded ? "what to do" : "hide";
  button.setAttribute("aria-expanded", String(!folded));
}
function adviceRow(action) {
  const most = action.basis === "at most" ? "at most " : "";
  const how = action.basis === "at most" ? "" : `${action.basis}; `;
  const copy = make("button", "copy", { type: "button", class: "copy", title: `Copy ${action.command}` });
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(action.command);
    copy.textContent = "copied";
  });
  const isCode = /^\S*[.(_]/.test(action.title);
  const title = isCode ? action.title : action.title[0].toUpperCase() + action.title.slice(1);
  const share2 = (100 * action.saves_share).toFixed(1);
  const beyond = action.beyond ? [make("span", ` beyond ${action.beyond}`, { class: "beyond" })] : [];
  const saves = make("span", [`saves ${most}${duration(action.saves_ns)}`, ...beyond, ` (${share2}%)`], {
    class: "saves",
    title: action.beyond ? `beyond ${action.beyond}` : ""
  });
  const buttons = [copy];
  if (action.launches.length) {
    const show = make("button", "show", { type: "button", class: "copy", title: "Show these launches" });
    const pair = action.launches.slice(0, 2);
    show.addEventListener(
      "click",
      () => select(pairAt.has(pair.join(",")) ? { pair } : { launch: action.launches[0] })
    );
    buttons.push(show);
  }
  const summary = make("summary", [
    make("span", title, { class: "what" }),
    saves,
    make("code", action.command, { title: action.command }),
    ...buttons
  ]);
  return make("li", [make("details", [summary, make("p", `${how}${action.effort} of work: ${action.reason}.`)])]);
}
function schedulesTable(schedules) {
  const longest2 = Math.max(...schedules.map((row2) => row2.time_ns));
  return make("table", [
    make(
      "tbody",
      schedules.map((row2) => {
        const svg = svgOf("svg", { viewBox: "0 0 90 9", "aria-hidden": "true" });
        svg.append(svgOf("rect", { width: Math.max(90 * row2.time_ns / longest2, 1), height: 9 }));
        const saves = row2.name === "recorded" ? "" : `${row2.saves_share < 0 ? "+" : "−"}${Math.abs(100 * row2.saves_share).toFixed(1)}%`;
        return make(
          "tr",
          [
            make("th", row2.label, { scope: "row", title: row2.label }),
            make("td", duration(row2.time_ns)),
            make("td", saves),
            make("td", [svg])
          ],
          { class: row2.name }
        );
      })
    )
  ]);
}
function kept(name) {
  try {
    return localStorage.getItem(`tileprof.${name}`);
  } catch {
    return null;
  }
}
function keep(name, value) {
  try {
    localStorage.setItem(`tileprof.${name}`, value);
  } catch {
  }
}

// viz/scripts/main.js
var panels = { graph: graphView, matrix: matrixView, tiles: tilesView, tensor: tensorView, lanes: lanesView };
var active = "graph";
function showSummary() {
  const s = doc.summary;
  document.getElementById("command").textContent = s.command || "A trace";
  const modelled = s.timing.modelled > 0;
  const kind = modelled && s.timing.measured > 0 ? "partly modelled" : modelled ? "modelled" : "measured";
  const fact = (label, value, mark) => make("span", [make("b", value), document.createTextNode(` ${label}`)], mark ? { class: "mark" } : {});
  const facts = [make("span", [make("b", s.device), document.createTextNode(` · ${s.sms} SMs`)])];
  if (timed) facts.push(fact(kind, duration(s.recorded_ns ?? s.span_ns)));
  const counts = { ...s };
  if (s.pairs === pairCount) {
    counts.pairs -= pairs.reuse_only.reduce((n, only) => n + only, 0);
    counts.edges -= links.edges.reduce((n, edges, i) => n + (links.reuse[i] ? edges : 0), 0);
  }
  for (const [name, word] of [
    ["launches", "launch"],
    ["tiles", "tile"],
    ["pairs", "pair"],
    ["edges", "edge"]
  ])
    facts.push(fact(counts[name] === 1 ? word : name, compact(counts[name])));
  for (const name of ["inferred", "conservative"])
    if (s.coverage[name]) facts.push(fact(name, number(s.coverage[name]), name === "conservative"));
  if (!s.coverage.inferred && !s.coverage.conservative && s.launches && s.accesses)
    facts.push(fact("accesses", "exact"));
  if (s.accesses) facts.push(info("accesses"));
  if (doc.policy) facts.push(verdict(doc.policy));
  document.getElementById("facts").replaceChildren(...facts);
  showNotes(s);
}
function verdict(p) {
  if (p.refused)
    return make("span", [document.createTextNode(`${p.name}: `), make("b", "not of this trace")], {
      class: "bad",
      id: "verdict",
      title: p.refused
    });
  const words = p.sound ? "sound" : p.missing ? `UNSOUND: ${number(p.missing)} of ${number(p.needed)} dependencies missing` : "UNSOUND";
  const excess = p.excess ? `, ${number(p.excess)} tiles awaited in excess` : "";
  const title = `${plural(p.needed, "dependency", "dependencies")} between its launches, ${plural(p.waits, "wait")}`;
  return make("span", [document.createTextNode(`${p.name}: `), make("b", words), document.createTextNode(excess)], {
    class: p.sound ? "good" : "bad",
    id: "verdict",
    title
  });
}
function showNotes(s) {
  const warnings = [];
  if (!s.complete) warnings.push("Partial trace: the recording ended early, and the page shows what was recorded.");
  if (!s.launches) warnings.push("The trace holds no launches: there is nothing to draw.");
  else if (!s.accesses) warnings.push("The trace holds no accesses: dependencies are unknown, not absent.");
  if (s.launches && !timed) warnings.push("The trace holds no times: dependencies are right, but gains are unknown.");
  if (s.coverage.conservative)
    warnings.push(
      `${plural(s.coverage.conservative, "launch is", "launches are")} conservative: what they really touch is unknown, so they depend on more than they need.`
    );
  if (doc.policy?.refused) warnings.push(`${doc.policy.name} is not of this trace: ${doc.policy.refused}`);
  if (doc.policy && !doc.policy.sound)
    warnings.push(...doc.policy.reasons.map((reason) => `The policy is unsound: ${reason}.`));
  const notes = [...doc.notes];
  if (s.granule > 1)
    notes.push(`Accesses were recorded in granules of ${s.granule} bytes: dependencies are a superset.`);
  (s.complete ? notes : warnings).push(...s.reasons);
  const box = document.getElementById("notes");
  box.hidden = !warnings.length;
  if (warnings.length === 1) box.replaceChildren(make("p", warnings[0]));
  else if (warnings.length) {
    const list = make(
      "ul",
      warnings.slice(1).map((n) => make("li", n))
    );
    box.replaceChildren(make("details", [make("summary", `${warnings[0]} (${warnings.length - 1} more)`), list]));
  }
  const button = document.getElementById("said");
  button.hidden = !notes.length;
  button.textContent = plural(notes.length, "note");
  button.addEventListener(
    "click",
    () => showWords(
      "Notes",
      make(
        "ul",
        notes.map((n) => make("li", n))
      )
    )
  );
}
function addButtons() {
  for (const [name, view] of Object.entries(panels)) {
    const panel = document.getElementById(name);
    const button = (drawn, title, action, id = "") => {
      const made = make("button", [icon(drawn)], { type: "button", title, "aria-label": title, ...id && { id } });
      made.addEventListener("click", action);
      return made;
    };
    if (name === "matrix")
      panel.querySelector(".buttons").append(
        button(
          "M3 3l8 8M11 3l-8 8",
          "Back to the list of pairs (Esc)",
          () => select({ launch: state.launch }),
          "back"
        )
      );
    panel.querySelector(".buttons").append(
      button("M3 7h8", "Zoom out (-)", () => view.zoom(1 / 1.5)),
      button("M3 7h8M7 3v8", "Zoom in (+)", () => view.zoom(1.5)),
      button("M2 7h10M4 5L2 7l2 2M10 5l2 2-2 2", "Show all (0)", () => view.fit()),
      button("M2 5V2h3M9 2h3v3M12 9v3H9M5 12H2V9", "Show only this view (f)", () => showOnly(name))
    );
    panel.addEventListener("pointerdown", () => active = name);
    panel.addEventListener("focusin", () => active = name);
  }
  for (const name of ["gain", "sizes"]) {
    const made = make("button", [icon("M2 5V2h3M9 2h3v3M12 9v3H9M5 12H2V9")], {
      type: "button",
      title: "Show only this view (f)",
      "aria-label": "Show only this view"
    });
    made.addEventListener("click", () => showOnly(name));
    document.querySelector(`#${name} .buttons`).append(made);
    document.getElementById(name).addEventListener("pointerdown", () => active = name);
  }
  for (const nav of document.querySelectorAll(".tabs")) {
    nav.append(
      ...Object.entries(TABS).map(([name, label]) => {
        const tab = make("button", label, { type: "button", role: "tab", "data-tab": name, "aria-controls": name });
        tab.addEventListener("click", () => showTab(name));
        tab.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          const names = Object.keys(TABS);
          showTab(names[(names.indexOf(name) + step + names.length) % names.length]);
          document.querySelector(`#${state.tab} [role="tab"][data-tab="${state.tab}"]`)?.focus();
          event.preventDefault();
          event.stopPropagation();
        });
        return tab;
      })
    );
  }
}
function showTab(name) {
  state.tab = active = name;
  changed();
}
function showOnly(name) {
  const main = document.querySelector("main");
  const panel = name in TABS ? "work" : name;
  if (main.dataset.only === panel) delete main.dataset.only;
  else main.dataset.only = panel;
}
var KEYS = [
  ["h", "what to do first: show or hide"],
  ["w  s  a  d", "zoom in, zoom out, left, right"],
  ["Shift, drag", "in the timeline: choose a range of time; a click ends it"],
  [
    "← → ↑ ↓",
    "in the launch graph: along issue order, along the heaviest dependency; elsewhere: move the window, or the tile cursor"
  ],
  [
    "Enter",
    "in the launch graph: show the heaviest pair of the selected launch; elsewhere: a tile cursor that arrows move, Enter again selects, Esc ends"
  ],
  ["o", "open or fold the layers around the selected launch"],
  ["+  −  0", "zoom in, zoom out, show all"],
  ["/", "search; Enter goes to the next match; kernel:, op: or module: before a word searches only these names"],
  ["f", "show only this view, or all views"],
  ["1  2  3", "launches, tiles of a pair, timeline"],
  ["4  5  6  7", "tile graph, gain, what if, tensor"],
  ["b", "another scheduler beside the recorded timeline"],
  [",  .", "move the marked time back or forward; a drag along the timeline's axis does the same"],
  ["t", "dark or light"],
  ["Esc", "step back: view, tile, pair, launch, search"],
  ["wheel, drag", "zoom and move; with Shift the wheel zooms the timeline's lanes; double click shows all"]
];
function showKeys() {
  const keys = make(
    "dl",
    KEYS.flatMap(([k, v]) => [make("dt", k), make("dd", v)])
  );
  showWords("Keys", make("div", [keys, make("h2", "Words"), allWords()]), document.getElementById("keys"));
}
function stepBack() {
  if (document.querySelector("main").dataset.only) return delete document.querySelector("main").dataset.only;
  if (state.time !== null) return setTime(null);
  if (state.tile) return select({ pair: state.pair, chain: state.chain, launch: state.launch });
  if (state.chain) return select({ pair: state.pair });
  if (state.pair) return select({ launch: null });
  if (state.launch !== null) return select({});
  search("");
}
function search(words) {
  state.search = words;
  const box = document.getElementById("search");
  if (box.value !== words) box.value = words;
  changed();
}
function nextFound() {
  const all = [...found].sort((a, b) => a - b);
  if (!all.length) return;
  select({ launch: all.find((i) => i > (state.launch ?? -1)) ?? all[0] });
}
var cursor = { view: "", at: [0, 0] };
var within = (v, count) => Math.min(Math.max(v, 0), Math.max(count - 1, 0));
var CURSORS = {
  matrix: {
    begin: () => matrix.parts.length && [state.tile?.[0] === state.pair[1] ? matrix.columns.place[state.tile[1]] : 0, 0],
    move: ([x, y], right, down) => [within(x + right, matrix.consumers), within(y + down, matrix.producers)],
    point: ([x, y]) => [x + 0.5, y + 0.5]
  },
  tiles: {
    begin: () => chain.parents && [
      Math.max(chain.launches.indexOf(state.tile?.[0]), 0),
      chain.launches.includes(state.tile?.[0]) ? state.tile[1] : 0
    ],
    move([column, tile], right, down) {
      const next = within(column + right, chain.launches.length);
      return [next, within(tile + down, launches.tiles[chain.launches[next]])];
    },
    point: ([column, tile]) => [column + 0.5, nodeY(column, tile)]
  },
  lanes: {
    begin: () => timed && (state.tile ?? [state.launch ?? 0, 0]),
    move([launch, tile], right, down) {
      const next = within(launch + down, launchCount);
      return [next, within(tile + right, launches.tiles[next])];
    },
    point([launch, tile]) {
      const table = laneTables.ready(laneOf[launch]);
      const begin = startOf(launch) + (table?.sm ? (table.begin[tile] + table.life[tile] / 2) * TENTH_NS : 0);
      return [begin, table?.sm ? table.sm[tile] + (table.slot[tile] + 0.5) / table.slots : 0];
    }
  }
};
for (const name of Object.keys(CURSORS)) {
  panels[name].over = (c) => {
    if (cursor.view !== name) return;
    const [x, y] = panels[name].toScreen(...CURSORS[name].point(cursor.at));
    c.strokeStyle = INK.focus;
    c.lineWidth = 2.5;
    c.strokeRect(x - 8, y - 8, 16, 16);
  };
}
function moveCursor(right, down) {
  const [view, own] = [panels[cursor.view], CURSORS[cursor.view]];
  cursor.at = own.move(cursor.at, right, down);
  const [x, y] = view.toScreen(...own.point(cursor.at));
  const off = (v, low, high) => v < low ? low - v : v > high ? high - v : 0;
  view.pan(off(x, view.margin.left + 20, view.width - 20), off(y, view.margin.top + 20, view.height - 20));
  const [sx, sy] = view.toScreen(...own.point(cursor.at));
  const box = view.canvas.getBoundingClientRect();
  showTip(view.hover(sx, sy), box.left + sx, box.top + sy);
}
function cursorKey(key, onCanvas) {
  const view = cursor.view === active && onCanvas ? panels[active] : null;
  if (view && Object.hasOwn(STEPS, key)) moveCursor(-STEPS[key][0], -STEPS[key][1]);
  else if (view && key === "Enter") view.click(...view.toScreen(...CURSORS[active].point(cursor.at)));
  else if (key === "Escape" && cursor.view) endCursor();
  else if (key === "Enter" && onCanvas && Object.hasOwn(CURSORS, active) && CURSORS[active].begin()) {
    Object.assign(cursor, { view: active, at: CURSORS[active].begin() });
    moveCursor(0, 0);
  } else return false;
  return true;
}
function cursorStands() {
  if (cursor.view === "lanes") return true;
  return state.tab === cursor.view && (cursor.view === "matrix" ? matrix.key === state.pair?.join(",") : String(chainNow()) === String(chain.launches));
}
function endCursor() {
  const view = panels[cursor.view];
  cursor.view = "";
  view?.leave();
  view?.redraw();
}
var STEPS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
var ACTIONS = {
  "/": () => document.getElementById("search").select(),
  "+": () => panels[active]?.zoom(1.3),
  "=": () => panels[active]?.zoom(1.3),
  "-": () => panels[active]?.zoom(1 / 1.3),
  0: () => panels[active]?.fit(),
  f: () => showOnly(active in TABS ? state.tab : active),
  t: toggleTheme,
  h: toggleAdvice,
  w: () => panels[active]?.zoom(1.3),
  s: () => panels[active]?.zoom(1 / 1.3),
  a: () => panels[active]?.pan(60, 0),
  d: () => panels[active]?.pan(-60, 0),
  "?": showKeys,
  Escape: stepBack,
  1: () => focusPanel("graph"),
  2: () => focusPanel("matrix"),
  3: () => focusPanel("lanes"),
  4: () => focusPanel("tiles"),
  5: () => showTab("gain"),
  7: () => focusPanel("tensor"),
  6: () => showTab("sizes"),
  b: nextBeside,
  ",": () => stepTime(-1),
  ".": () => stepTime(1),
  o: () => {
    const node = state.launch !== null && nodeFor(state.launch);
    const box = node?.module ? node : node?.parent;
    if (box?.group) toggleGroup(box);
  }
};
function nextBeside() {
  const names = ["", ...doc.schedules.filter(hasLanes).map((s) => s.name)];
  chooseBeside(names[(names.indexOf(state.beside) + 1) % names.length]);
}
function focusPanel(name) {
  active = name;
  if (name in TABS) showTab(name);
  document.querySelector(`#${name} canvas`).focus();
}
function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  const { key } = event;
  if (cursorKey(key, event.target instanceof HTMLCanvasElement)) return event.preventDefault();
  if (Object.hasOwn(STEPS, key)) {
    if (active === "graph") walkGraph(key);
    else panels[active]?.pan(STEPS[key][0] * 60, STEPS[key][1] * 40);
  } else if (key === "Enter" && event.target instanceof HTMLCanvasElement && state.launch !== null && !state.pair) {
    const i = [heaviestPair(state.launch, "consumer"), heaviestPair(state.launch, "producer")].find((p) => p >= 0);
    if (i !== void 0) select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  } else if (Object.hasOwn(ACTIONS, key)) ACTIONS[key]();
  else return;
  event.preventDefault();
}
function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep("theme", theme);
  setTheme(theme);
  buildLegend();
  showKernelLegend();
  matrix.key && matrix.parts.length ? describePair() : rankPairs();
  showGain();
  showSizes();
  if (picture.tensor) describeTensor();
}
var drawnAs = "";
var lastLaunch = null;
function refresh() {
  findLaunches();
  for (const i of [state.pair?.[0], state.pair?.[1], state.launch]) if (i !== void 0 && i !== null) reveal(i);
  const as = JSON.stringify([[...state.open].sort(), state.copies]);
  if (as !== drawnAs) {
    drawnAs = as;
    rebuildGraph();
  }
  drawing.found = null;
  const count = found.size;
  document.getElementById("found").textContent = state.search ? plural(count, "match", "matches") : "";
  describeLaunch();
  if (state.launch !== null && state.launch !== lastLaunch) showNode(state.launch);
  lastLaunch = state.launch;
  graphView.redraw();
  document.querySelector("main").dataset.tab = state.tab;
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === state.tab));
    tab.tabIndex = tab.dataset.tab === state.tab ? 0 : -1;
  }
  document.getElementById("beside").value = state.beside;
  if (cursor.view && !cursorStands()) endCursor();
  showMatrix();
  showTiles();
  showTensor();
  showGain();
  showSizes();
  showLanes();
}
function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = kept("theme");
  setTheme(chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => kept("theme") ?? setTheme(dark.matches ? "dark" : "light"));
  showSummary();
  showAdvice();
  buildLegend();
  showKernelLegend();
  addButtons();
  fillBeside();
  document.getElementById("beside").addEventListener("change", (event) => chooseBeside(event.target.value));
  const box = document.getElementById("search");
  box.addEventListener("input", () => search(box.value));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextFound();
    if (event.key === "Escape") {
      search("");
      box.blur();
    }
  });
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.addEventListener("keydown", pressKey);
  addEventListener("hashchange", () => {
    readHash();
    box.value = state.search;
    refresh();
  });
  watch(refresh);
  readHash();
  box.value = state.search;
  refresh();
  for (const view of Object.values(panels)) view.resize();
  if (state.launch !== null) showNode(state.launch);
  document.documentElement.dataset.ready = "yes";
}
if (doc.served) serve();
start();
window.tileprof = {
  doc,
  laneTables,
  laneOf,
  startOf,
  state,
  select,
  views: panels,
  launches,
  pairs,
  matrix,
  chain,
  simulated,
  simulatedRow,
  ran,
  whatIf,
  flow: laneFlow,
  drawing: () => drawing,
  overviewRows,
  picture,
  map: () => mapOf(graphView, drawing),
  nodeFor
};
export {
  panels
};
