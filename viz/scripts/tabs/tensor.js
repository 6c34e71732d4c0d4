// The view Tensor: the bytes that a tile reads and writes, on the axes of the tensor that they belong to.

import { FONT, fitted, INK, make, niceStep, Surface } from "../canvas.js";
import {
  blocks,
  boxOf,
  boxTables,
  buffers,
  coordinates,
  launchCount,
  launches,
  launchName,
  links,
  loadBoxes,
  loadGrid,
  number,
  pairs,
  pairsOf,
  plural,
  text,
  uses,
  usesOf,
} from "../data.js";
import { shownLinks } from "../fold.js";
import { select, state } from "../state.js";
import { svgOf } from "./gain.js";
import { sayCentre, showReuse } from "./launches.js";
import { rankedEdges } from "./pair_ranking.js";
import { cellsOf, hull, rangesOfBox } from "./tensor_ranges.js";
import { setsWith } from "./timeline.js";

const MOST_NEAR = 400; // tiles of other launches that are outlined
const MOST_SEARCHED = 5_000; // tiles that a click chooses from
const READS = 1;
const WRITES = 2;

// What is drawn: an operand (`use`, a row of uses) of a tile, on two axes of its tensor.
export const picture = { key: "", launch: -1, tile: 0, use: -1, axes: null, tensor: null, ranges: [], near: [] };
const wanted = { use: new Map(), axes: new Map() }; // what a reader chose, by launch and by use

export const tensorView = new Surface(document.querySelector("#tensor canvas"), {
  axes: "free",
  draw: drawTensor,
  hover: hoverTensor,
  click: clickTensor,
  margin: { left: 64, top: 34 },
  limits: [1e-6, 60],
});

tensorView.fit = () => {
  if (!picture.tensor) return;
  const [high, wide] = picture.axes.map((axis) => picture.tensor.shape[axis]);
  let kx = Math.min((tensorView.plotWidth - 14) / wide, 48);
  let ky = Math.min((tensorView.plotHeight - 14) / high, 48);
  // Axes of about the same length keep square elements: a halo looks like one.
  if (Math.max(high / wide, wide / high) < 4) kx = ky = Math.min(kx, ky);
  tensorView.view = { x: 0, y: 0, kx, ky };
  tensorView.touched = false;
  tensorView.redraw();
};

tensorView.extent = () =>
  picture.tensor ? picture.axes.map((axis) => picture.tensor.shape[axis]).reverse() : [Infinity, Infinity];

tensorView.keep = () => {
  const { view: v, plotWidth: w, plotHeight: h } = tensorView;
  const [wide, high] = tensorView.extent();
  v.x = Math.min(Math.max(v.x, 40 - wide * v.kx), w - 40);
  v.y = Math.min(Math.max(v.y, 40 - high * v.ky), h - 40);
};

// The selected tile; without one the first tile of the selected pair's consumer, of the launch, of the first pair.
function tileNow() {
  if (state.tile) return state.tile;
  const launch = state.pair?.[1] ?? state.launch ?? pairs.consumer[rankedEdges()[0]?.pair] ?? 0;
  return launchCount ? [launch, 0] : null;
}

// Bits of an element, by its type's name; bytes where it has none.
function itemOf(dtype) {
  if (dtype === "bool") return 1;
  return Math.max(Number(dtype.match(/\d+/)?.[0] ?? 8) / 8, 1 / 8);
}

// The tensor that a use is bound to, at least two axes; memory of which nothing is known in rows of bytes.
function tensorOf(use) {
  const list = (column, by) => text(column, use).split(by).filter(Boolean).map(Number);
  const [shape, strides] = [list(uses.shape, "×"), list(uses.strides, ",")];
  const good = shape.length && shape.length === strides.length && shape.every((n) => n > 0);
  if (good) {
    const item = itemOf(text(uses.dtype, use));
    const short = shape.length < 2;
    return {
      offset: uses.offset[use],
      item,
      dtype: text(uses.dtype, use),
      shape: short ? [1, ...shape] : shape,
      strides: short ? [0, ...strides] : strides,
    };
  }
  const bytes = Math.max(buffers.bytes[uses.buffer[use]], 1);
  const wide = Math.max(2 ** Math.ceil(Math.log2(Math.sqrt(bytes))), 64);
  return { offset: 0, item: 1, dtype: "", shape: [Math.ceil(bytes / wide), wide], strides: [wide, 1] };
}

// Uses of a launch that its tiles touch, reads first.
const touched = (launch) =>
  usesOf[launch].filter((use) => uses.how[use] > 0).sort((p, q) => uses.how[p] - uses.how[q] || p - q);

// The operand through which the chosen pair depends, else the first one that other launches of the trace wrote.
function useNow(launch) {
  const all = touched(launch);
  if (all.includes(wanted.use.get(launch))) return wanted.use.get(launch);
  const other = state.pair?.includes(launch) ? state.pair.find((i) => i !== launch) : undefined;
  const bit = launch === state.pair?.[0] ? WRITES : READS;
  const shared = (use, i) => touched(i).some((u) => uses.buffer[u] === uses.buffer[use] && uses.how[u] & (3 - bit));
  const through = other === undefined ? undefined : all.find((use) => uses.how[use] & bit && shared(use, other));
  const producers = pairsOf[launch].map((i) => pairs.producer[i]).filter((i) => i !== launch);
  return through ?? all.find((use) => uses.how[use] & READS && producers.some((i) => shared(use, i))) ?? all[0] ?? -1;
}

// The two axes with more than one element that lie innermost in the tensor's own order.
function axesNow(use, { shape }) {
  const chosen = wanted.axes.get(use);
  if (chosen) return chosen;
  const wide = shape.map((_, axis) => axis).filter((axis) => shape[axis] > 1);
  const last = [...new Set([...wide.reverse(), shape.length - 1, shape.length - 2])].slice(0, 2);
  return last.sort((p, q) => p - q);
}

// Ranges that a tile reads (bit 1) or writes (bit 2) of a buffer, on the axes of `tensor`.
function rangesOf(launch, tile, buffer, bit, tensor) {
  const table = boxTables.ready(boxOf[launch]);
  if (!table?.tile) return [];
  const bound = new Map(usesOf[launch].map((use) => [uses.operand[use], use]));
  const ranges = [];
  for (let row = firstRow(table.tile, tile); row < table.tile.length && table.tile[row] === tile; row++) {
    const use = bound.get(table.operand[row]);
    const how = table.mode[row] === 0 ? READS : table.mode[row] === 1 ? WRITES : READS | WRITES;
    if (use === undefined || uses.buffer[use] !== buffer || !(how & bit)) continue;
    const levels = [
      [table.count_0[row], table.stride_0[row]],
      [table.count_1[row], table.stride_1[row]],
    ];
    const offset = uses.offset[use] + table.offset[row];
    for (const range of rangesOfBox({ offset, length: table.length[row], levels }, tensor)) ranges.push(range);
  }
  return ranges;
}

function firstRow(tiles, tile) {
  let [low, high] = [0, tiles.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tiles[middle] < tile) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Tiles of other launches that wrote what this tile reads, or read what it writes: [launch, tile].
async function nearTiles(launch, tile, buffer, bit) {
  const near = [];
  for (const i of pairsOf[launch]) {
    const other = bit === READS ? pairs.producer[i] : pairs.consumer[i];
    const after = (bit === READS ? pairs.consumer[i] : pairs.producer[i]) === launch;
    const meets = touched(other).some((u) => uses.buffer[u] === buffer && uses.how[u] & (3 - bit));
    if (!after || other === launch || !meets) continue;
    const parts = shownLinks(pairs.producer[i], pairs.consumer[i]);
    const found = await Promise.all(parts.map((link) => linkedTiles(link, tile, bit)));
    await loadBoxes(other);
    for (const t of new Set(found.flat())) if (near.length < MOST_NEAR) near.push([other, t]);
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

export async function showTensor() {
  if (state.tab !== "tensor") return;
  const [launch, tile] = tileNow() ?? [];
  const use = launch === undefined ? -1 : useNow(launch);
  const tensor = use < 0 ? null : tensorOf(use);
  const axes = tensor && axesNow(use, tensor);
  const key = JSON.stringify([launch, tile, use, axes, showReuse]);
  if (key === picture.key) return tensorView.redraw();
  const same = picture.use === use && String(picture.axes) === String(axes);
  Object.assign(picture, { key, launch: launch ?? -1, tile, use, tensor, axes, ranges: [], near: [], cells: null });
  if (!tensor) return describeTensor();
  await Promise.all([loadBoxes(launch), loadGrid(launch)]);
  if (picture.key !== key) return; // another tile was chosen meanwhile
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
  const place = (range) => range && [range[axes[0]], range[axes[1]]];
  picture.near = near
    .map(([other, t]) => ({ launch: other, tile: t, box: place(hull(rangesOf(other, t, buffer, 3 - bit, tensor))) }))
    .filter((tileNear) => tileNear.box);
  describeTensor();
  tensorView.redraw();
}

function choose(change) {
  change();
  showTensor();
}

export function describeTensor() {
  const { launch, tile, use, tensor, axes } = picture;
  const box = document.getElementById("tensor-choice");
  const says = document.getElementById("tensor-says");
  document.getElementById("tensor-axes").replaceChildren(...(tensor && picture.cells ? otherAxes() : []));
  if (!tensor) {
    says.textContent = "";
    return box.replaceChildren(document.createTextNode("The bytes of this launch are unknown."));
  }
  const verb = { 1: "reads", 2: "writes", 3: "updates" };
  const words = (u) =>
    [
      verb[uses.how[u]],
      text(buffers.name, uses.buffer[u]) || text(buffers.kind, uses.buffer[u]) || `buffer ${uses.buffer[u]}`,
      text(uses.dtype, u),
      text(uses.shape, u),
    ].join(" ");
  const operand = make(
    "select",
    touched(launch).map((u) => make("option", words(u), { value: u })),
    { "aria-label": "Tensor" },
  );
  operand.value = use;
  operand.addEventListener("change", () => choose(() => wanted.use.set(launch, Number(operand.value))));
  const axis = (k) => {
    const options = tensor.shape.map((size, a) => make("option", `axis ${a} (${number(size)})`, { value: a }));
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
    make("label", [document.createTextNode("across "), axis(1)]),
  );
  if (focused) box.querySelector(`[aria-label="${focused}"]`)?.focus();
  const others = picture.near.length;
  const told =
    picture.bit === READS
      ? `outlined: ${plural(others, "tile")} that wrote it`
      : `outlined: ${plural(others, "tile")} that read it`;
  const left = boxOf[launch] < 0 ? ["the boxes of this kernel did not fit in the page: --serve has them"] : [];
  says.textContent = [...left, ...(others ? [told] : []), "a click chooses the tile there"].join(" · ");
}

// The axes that are not drawn: which part of each the tile touches.
function otherAxes() {
  const { tensor, axes, ranges } = picture;
  const around = hull(ranges);
  const rest = tensor.shape.map((_, axis) => axis).filter((axis) => !axes.includes(axis) && tensor.shape[axis] > 1);
  const parts = rest.map((axis) => {
    const [low, high] = around ? around[axis] : [0, 0];
    const size = tensor.shape[axis];
    const svg = svgOf("svg", { viewBox: "0 0 120 9", "aria-hidden": "true" });
    svg.append(svgOf("rect", { width: 120, height: 9, fill: INK.box, stroke: INK.line }));
    const [x, width] = [(120 * low) / size, Math.max((120 * (high - low)) / size, 1)];
    svg.append(svgOf("rect", { x, width, height: 9, fill: colourNow() }));
    const part = !around
      ? "nothing"
      : high - low === size
        ? `all ${number(size)}`
        : high - low === 1
          ? `${low}`
          : `${low} to ${high - 1}`;
    return make("span", [document.createTextNode(`axis ${axis}`), svg, make("b", part)]);
  });
  return parts.length ? [...parts, make("span", "shade: share of these that the tile touches")] : [];
}

const colourNow = () => (picture.bit === READS ? INK.consumer : INK.producer);
const nearColour = () => (picture.bit === READS ? INK.producer : INK.consumer);
const scratch = document.createElement("canvas");

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
  Object.assign(scratch, { width: cells.wide, height: cells.high });
  scratch.getContext("2d").putImageData(image, 0, 0);
  c.imageSmoothingEnabled = false;
  c.drawImage(scratch, x, y, cells.wide * cells.step[1] * v.kx, cells.high * cells.step[0] * v.ky);
  c.strokeStyle = INK.line;
  c.strokeRect(x, y, wide * v.kx, high * v.ky);
  c.strokeStyle = nearColour();
  for (const { box } of picture.near) {
    const [a, b] = [tensorView.toScreen(box[1][0], box[0][0]), tensorView.toScreen(box[1][1], box[0][1])];
    c.lineWidth = picture.near.length > 60 || b[1] - a[1] < 12 ? 0.8 : 1.5; // outlines must not cover what they outline
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

// The element under the pointer, [down, across].
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
  const index = tensor.shape.map((_, axis) => (axis === axes[0] ? at[0] : axis === axes[1] ? at[1] : ":"));
  const share = cells.share[Math.floor(at[0] / cells.step[0]) * cells.wide + Math.floor(at[1] / cells.step[1])];
  const verb = picture.bit === READS ? "reads" : "writes";
  const behind = tensor.shape.reduce((n, size, axis) => (axes.includes(axis) ? n : n * size), 1);
  const part = behind > 1 ? `${Math.round(100 * share)}% of the ${number(behind)} elements here` : "it";
  const lines = [
    `[${index.join(", ")}]`,
    share > 0 ? `tile ${picture.tile} ${verb} ${part}` : `tile ${picture.tile} does not touch it`,
  ];
  const here = picture.near.filter(({ box: [d, a] }) => at[0] >= d[0] && at[0] < d[1] && at[1] >= a[0] && at[1] < a[1]);
  if (here.length) {
    const names = here.slice(0, 6).map((n) => `${n.tile} of launch ${n.launch}`);
    const more = here.length > 6 ? ` and ${here.length - 6} more` : "";
    lines.push(`${picture.bit === READS ? "written" : "read"} by tile ${names.join(", ")}${more}`);
  }
  return lines;
}

// Chooses the tile of the same launch that touches the element; of several the one in whose middle it lies.
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
