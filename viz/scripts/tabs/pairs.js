// The view Pairs: the tiles of a pair, producers down and consumers across.

import { FONT, fitted, INK, make, niceStep, patternMark, Surface } from "../canvas.js";
import {
  blocks,
  coordinates,
  doc,
  duration,
  gridOf,
  grids,
  HAZARDS,
  keeper,
  launches,
  launchName,
  links,
  linksOf,
  loadGrid,
  number,
  pairAt,
  pairs,
  plural,
  short,
  shortKernel,
  size,
  text,
} from "../data.js";
import { shownEdges, shownLink } from "../fold.js";
import { info } from "../glossary.js";
import { select, state } from "../state.js";
import { sayCentre } from "./launches.js";
import { earlyTitle, earlyWords, rankPairs } from "./pair_ranking.js";

export const matrix = { key: "", parts: [], hidden: new Set(), order: "dispatch", awaited: null, missing: null };

// A policy over the relations: `overlayOf` gives, by pair, what its waits await and what they miss.
const overlays = keeper((doc.policy?.pairs ?? []).flatMap((p) => [p.awaited ?? {}, p.missing ?? {}]));
export const overlayOf = new Map(
  (doc.policy?.pairs ?? []).map((p, i) => [p.pair, { awaited: p.awaited && 2 * i, missing: p.missing && 2 * i + 1 }]),
);
export const missesSome = (pair) => Number.isInteger(overlayOf.get(pair)?.missing);
export const matrixView = new Surface(document.querySelector("#matrix canvas"), {
  axes: "free",
  draw: drawMatrix,
  hover: hoverMatrix,
  click: clickMatrix,
  margin: { left: 76, top: 44 },
  limits: [1e-7, 90],
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

// Some of the matrix stays in sight.
matrixView.keep = () => {
  const { view: v, plotWidth: w, plotHeight: h } = matrixView;
  v.x = Math.min(Math.max(v.x, 40 - matrix.consumers * v.kx), w - 40);
  v.y = Math.min(Math.max(v.y, 40 - matrix.producers * v.ky), h - 40);
};

export async function showMatrix() {
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
    block: await blocks.load(links.block[link]),
  }));
  await Promise.all([loadGrid(from), loadGrid(to)]);
  const parts = await Promise.all(loads);
  const overlay = overlayOf.get(pairAt.get(key)) ?? {};
  const laid = (at) => (Number.isInteger(at) ? overlays.load(at) : null);
  const [awaited, missing] = await Promise.all([laid(overlay.awaited), laid(overlay.missing)]);
  if (matrix.key !== key) return; // another pair was chosen meanwhile
  Object.assign(matrix, {
    parts,
    awaited,
    missing,
    producers: launches.tiles[from],
    consumers: launches.tiles[to],
    pair: pairAt.get(key),
  });
  matrix.coarse = parts.some((p) => p.block.counts);
  matrix.leftOut = parts.some((p) => p.block.left_out);
  orderTiles();
  describePair();
  matrixView.fit();
}

// `place[tile]` is a tile's row or column, `tile[place]` the other way round.
function ordering(launch, count) {
  const table = grids.ready(gridOf[launch]);
  const tile = new Int32Array(count);
  for (let i = 0; i < count; i++) tile[i] = i;
  if (table?.x && matrix.order !== "dispatch" && !matrix.coarse) {
    const axes = { x: ["z", "y", "x"], y: ["z", "x", "y"], z: ["y", "x", "z"] }[matrix.order].map((a) => table[a]);
    tile.sort((p, q) => axes[0][p] - axes[0][q] || axes[1][p] - axes[1][q] || axes[2][p] - axes[2][q]);
  }
  const place = new Int32Array(count);
  for (let i = 0; i < count; i++) place[tile[i]] = i;
  return { tile, place };
}

function orderTiles() {
  matrix.rows = ordering(state.pair[0], matrix.producers);
  matrix.columns = ordering(state.pair[1], matrix.consumers);
}

// Memory reuse first: what is drawn later hides it.
const linkedParts = () => matrix.parts.filter((p) => shownLink(p.link)).sort((p, q) => q.reuse - p.reuse);
const shownParts = () => linkedParts().filter((p) => !matrix.hidden.has(p.name) && !p.block.left_out);

function drawMatrix(c) {
  if (!matrix.parts.length) return matrix.key && sayCentre(c, matrixView, "…");
  const { view: v, margin: m } = matrixView;
  c.save();
  c.beginPath();
  c.rect(m.left, m.top, matrixView.plotWidth, matrixView.plotHeight);
  c.clip();
  c.fillStyle = INK.gap;
  c.fillRect(m.left + v.x, m.top + v.y, matrix.consumers * v.kx, matrix.producers * v.ky);
  const draw = (block, colour) =>
    block && !block.left_out && (block.counts ? drawCoarse(c, block, colour) : drawBlock(c, block, colour));
  if (!matrix.hidden.has("excess")) draw(matrix.awaited, INK.excess); // what stays to be seen of it is excess
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
    p1: clip(Math.ceil(y1), matrix.producers),
  };
}

// Zoomed out, a cell stands for a power of two of tiles: cells keep their place while panning.
const cellTiles = (k) => (k >= 1 ? 1 : 2 ** Math.ceil(Math.log2(1 / k)));

function countCells(block) {
  const { c0, c1, p0, p1 } = visible();
  const [across, down] = [cellTiles(matrixView.view.kx), cellTiles(matrixView.view.ky)];
  const [left, top] = [Math.floor(c0 / across) * across, Math.floor(p0 / down) * down];
  const [wide, high] = [Math.max(Math.ceil((c1 - left) / across), 1), Math.max(Math.ceil((p1 - top) / down), 1)];
  const counts = new Uint32Array(wide * high);
  const { set_of: setOf, indptr, parent } = block;
  const { tile } = matrix.columns;
  const { place } = matrix.rows;
  // Where many consumers share a set, its parents are sorted into cells once: 7e6 edges cost 4 ms instead of 75.
  const kept = indptr.length < setOf.length / 4 ? new Map() : null;
  for (let column = c0; column < c1; column++) {
    const set = setOf[tile[column]];
    if (set < 0) continue;
    const cell = Math.floor((column - left) / across);
    let rows = kept?.get(set);
    if (rows) {
      for (const [row, count] of rows) counts[row + cell] += count;
      continue;
    }
    rows = new Map();
    for (let e = indptr[set]; e < indptr[set + 1]; e++) {
      const at = place[parent[e]];
      if (at < p0 || at >= p1) continue;
      const row = Math.floor((at - top) / down) * wide;
      counts[row + cell]++;
      if (kept) rows.set(row, (rows.get(row) ?? 0) + 1);
    }
    kept?.set(set, [...rows]);
  }
  return { counts, wide, high, left, top, across, down };
}

const scratch = document.createElement("canvas");

function drawBlock(c, block, colour) {
  const cells = countCells(block);
  const full = Math.min(cells.across, matrix.consumers) * Math.min(cells.down, matrix.producers);
  paint(c, cells.counts, cells.wide, cells.high, full, colour, [
    cells.left,
    cells.top,
    cells.wide * cells.across,
    cells.high * cells.down,
  ]);
}

function drawCoarse(c, { counts, rows, columns }, colour) {
  const full = (matrix.consumers / columns) * (matrix.producers / rows);
  paint(c, counts, columns, rows, full, colour, [0, 0, matrix.consumers, matrix.producers]);
}

// A sparse cell must not vanish: one edge in a thousand tiles is still a third of full colour.
function paint(c, counts, wide, high, full, colour, [x, y, w, h]) {
  if (!(wide > 0 && high > 0)) return; // a part of no cells, while the pair changes
  const rgb = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  const image = new ImageData(wide, high);
  for (let i = 0; i < counts.length; i++) {
    if (!counts[i]) continue;
    image.data.set(rgb, 4 * i);
    // What is missing hides all else.
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

// A missing wait has a cross too: red alone is not enough of a sign.
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
      const row = matrix.rows.place[missing.parent[e]];
      if (row < p0 || row >= p1) continue;
      const [x, y] = matrixView.toScreen(column + 0.5, row + 0.5);
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
    14,
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
  const label = (launch, order, i, k) =>
    k > 62 ? `${order.tile[i]} ${coordinates(launch, order.tile[i])}` : String(order.tile[i]);
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
    `producer tile ${producer} ${coordinates(from, producer)} of ${shortKernel(from)}`,
  ];
  const edges = shownParts()
    .map((part) => edgeLine(part, producer, consumer))
    .filter(Boolean);
  return [
    ...lines,
    ...(edges.length ? edges : ["no dependency"]),
    ...policyLines(producer, consumer, edges.length > 0),
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

// Shares travel as bytes in steps of 1/254; 255 (read back as -1 where a byte has a sign) is unknown.
function share(byte) {
  const step = byte & 255;
  return step === 255 ? null : Math.round((step / 254) * 100);
}

function cellLines([x, y], across, down) {
  const [left, top] = [Math.floor(x / across) * across, Math.floor(y / down) * down];
  const [right, bottom] = [Math.min(left + across, matrix.consumers), Math.min(top + down, matrix.producers)];
  let edges = 0;
  for (const { block } of shownParts()) {
    for (let column = left; column < right; column++) {
      const set = block.set_of[matrix.columns.tile[column]];
      for (let e = set < 0 ? 0 : block.indptr[set]; set >= 0 && e < block.indptr[set + 1]; e++) {
        const row = matrix.rows.place[block.parent[e]];
        if (row >= top && row < bottom) edges++;
      }
    }
  }
  return [
    `consumers ${left}–${right - 1}, producers ${top}–${bottom - 1}`,
    `${number(edges)} edges among ${number((right - left) * (bottom - top))} pairs of tiles`,
    "zoom in to see single tiles",
  ];
}

function coarseLines([x, y]) {
  const here = ({ block: b }) =>
    b.counts[Math.floor((y * b.rows) / matrix.producers) * b.columns + Math.floor((x * b.columns) / matrix.consumers)];
  const edges = shownParts()
    .filter((p) => p.block.counts)
    .reduce((sum, part) => sum + here(part), 0);
  return [
    `about consumer ${number(x)}, producer ${number(y)}`,
    `${number(edges)} edges in this cell`,
    "aggregated: single tiles are not in this page",
  ];
}

function clickMatrix(sx, sy) {
  const cell = cellAt(sx, sy);
  if (!cell) return;
  const consumer = matrix.columns.tile[cell[0]];
  const same = state.tile && state.tile[0] === state.pair[1] && state.tile[1] === consumer;
  select({ pair: state.pair, chain: state.chain, tile: same ? null : [state.pair[1], consumer] });
}

export function describePair() {
  const i = matrix.pair;
  const [from, to] = state.pair;
  document.getElementById("matrix-title").textContent = `${launchName(from)} → ${launchName(to)}`;
  const says = [];
  if (matrix.coarse) says.push("aggregated: zoom shows no single tiles");
  if (matrix.leftOut) says.push("left out: this pair did not fit in the page");
  document.getElementById("matrix-says").textContent = says.join(" · ") || "click a column to follow its tile";
  const fact = (label, value, mark = "") =>
    make("span", [document.createTextNode(`${label} `), make("b", value)], mark ? { class: mark } : {});
  const names = make("div", [nameOf(from, INK.producer), document.createTextNode("→"), nameOf(to, INK.consumer)], {
    class: "full",
  });
  const pattern = make("span", [
    patternMark(doc.strings[pairs.pattern[i]]),
    document.createTextNode(" "),
    make("b", doc.strings[pairs.pattern[i]]),
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
        { class: "mark" },
      ),
    );
  parts.push(fact("edges", number(shownEdges(i))), fact("bytes", size(pairs.bytes[i])));
  if (Number.isFinite(pairs.tightness[i])) parts.push(fact("tightness", short(pairs.tightness[i])), info("pair"));
  const children = Math.max(0, ...linkedParts().map((p) => links.children[p.link]));
  const free = matrix.consumers - children;
  if (free > 0) parts.push(fact("consumer tiles that wait for none", number(free)));
  if (pairs.gain_ns[i] > 0) parts.push(fact("gain up to", duration(pairs.gain_ns[i])));
  if (Number.isFinite(pairs.early[i]))
    parts.push(
      make("span", [document.createTextNode("start early "), make("b", earlyWords(i))], { title: earlyTitle(i) }),
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
    { class: "name" },
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
    excess: "Tiles that the policy waits for though nothing depends on them",
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
          [hazard === "reuse" ? "memory reuse" : hazard, hazard in counts ? number(counts[hazard]) : ""]
            .join(" ")
            .trim(),
        ),
      ],
      { type: "button", class: "chip", title, "aria-pressed": "false" },
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
    { "aria-label": "Order of tiles" },
  );
  choice.value = matrix.order;
  choice.addEventListener("change", () => {
    matrix.order = choice.value;
    orderTiles();
    matrixView.redraw();
  });
  return choice;
}
