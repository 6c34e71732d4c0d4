// A canvas that is sharp, pans and zooms, and knows the page's colours.

export const INK = {};
// A hue means one thing. Blue and orange: who produces and who consumes. Violet to magenta: hazards. Green: patterns,
// darker the more a tile waits for. Pastel areas: kernels. Slate and sand: where time goes, and schedulers. Yellow:
// found by a search. Red: missing.
export const PALETTE = {
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
      independent: "#b8bfc9",
    },
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
      independent: "#5c6675",
    },
  },
};
// Hue is never the only sign: patterns that share one differ in their dashes.
export const DASHES = {
  one_to_many: [7, 3],
  many_to_one: [2, 3],
  column: [7, 3],
  irregular: [2, 2],
  independent: [1, 4],
};
export const patternColour = (name) => INK.patterns[name] ?? INK.patterns.irregular;

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
const surfaces = [];

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  Object.assign(INK, PALETTE[name]);
  for (const surface of surfaces) surface.redraw();
}

export class Surface {
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

  zoom(
    factor,
    sx = this.margin.left + this.plotWidth / 2,
    sy = this.margin.top + this.plotHeight / 2,
    vertical = false,
  ) {
    const [x, y] = this.toWorld(sx, sy);
    const [wide, high] = this.smallest();
    const clamp = (k, least) => Math.min(Math.max(k, this.limits[0], least), this.limits[1]);
    const v = this.view;
    if (this.axes === "both") v.kx = v.ky = clamp(v.kx * factor, Math.min(wide, high));
    else if (this.axes === "free") [v.kx, v.ky] = [clamp(v.kx * factor, wide), clamp(v.ky * factor, high)];
    else if (vertical !== (this.axes === "y"))
      v.ky = Math.min(
        Math.max(v.ky * factor, 0.01, this.axes === "y" ? high : 0),
        this.axes === "y" ? this.limits[1] : 200,
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
      taken: Boolean(this.take?.(...this.at(event), false, event)),
    };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.addEventListener(
      "pointerup",
      (e) => {
        const clicked = this.drag && !this.drag.far && !this.drag.taken;
        this.drag = null;
        if (clicked) this.click(...this.at(e), e);
      },
      { once: true },
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
}

const tip = document.getElementById("tip");

// `lines` are shown as text, never as markup: names in a trace are untrusted.
export function showTip(lines, x, y) {
  tip.hidden = !lines?.length;
  if (tip.hidden) return;
  tip.replaceChildren(...lines.map((line) => make("p", line)));
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width > innerWidth ? x - box.width - 10 : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16)}px`;
}

export function make(tag, content = "", attributes = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (Array.isArray(content)) element.append(...content);
  else element.textContent = content;
  return element;
}

// A line in the colour and the dashes of a pattern, for legends and tables.
export function patternMark(name) {
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

// Text that fits: the end goes first, because names differ least there once shortened; but a short "<add>" at the end
// stays.
export function fitted(c, string, width) {
  if (c.measureText(string).width <= width) return string;
  const end = string.match(/<[^<>]{1,16}>$/)?.[0] ?? "";
  const kept = c.measureText(`mmm…${end}`).width <= width ? end : "";
  let low = 0;
  for (let high = string.length - kept.length; low < high; ) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${string.slice(0, middle)}…${kept}`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${string.slice(0, low)}…${kept}` : "";
}

// Icons are drawn, so that no font has to have them.
export function icon(path) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "path");
  for (const [k, v] of Object.entries({
    d: path,
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.6,
    "stroke-linecap": "round",
  }))
    line.setAttribute(k, v);
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

export function niceStep(atLeast) {
  const ten = 10 ** Math.floor(Math.log10(atLeast));
  return [1, 2, 5, 10].map((m) => m * ten).find((s) => s >= atLeast);
}
