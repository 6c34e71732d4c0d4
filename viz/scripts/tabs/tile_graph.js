// The view Tile graph: tiles of a chain of launches as nodes, a column per launch, an edge per dependency.

import { FONT, fitted, INK, make, Surface } from "../canvas.js";
import {
  blocks,
  buffers,
  coordinates,
  duration,
  gridOf,
  grids,
  HAZARDS,
  laneOf,
  laneTables,
  launches,
  links,
  loadGrid,
  number,
  pairAt,
  pairs,
  plural,
  shortKernel,
  shortModule,
  size,
  TIMINGS,
  text,
  uses,
  usesOf,
} from "../data.js";
import { shownLinks } from "../fold.js";
import { select, state } from "../state.js";
import { heaviestPair, sayCentre, showReuse } from "./launches.js";
import { noPairs, rankedEdges } from "./pair_ranking.js";
import { simulated, simulatedLife, simulatedShift } from "./simulated_lanes.js";
import { besideWords, kernelColour, startOf, TENTH_NS } from "./timeline.js";

const MOST_NODES = 4_000;
const MOST_LINES = 30_000;
export const chain = {
  key: null,
  launches: [],
  height: 1,
  bundles: [],
  lines: 0,
  left: 0,
  free: [],
  parents: null,
  problem: "",
};
let hot = null; // the tile under the pointer, [column, tile]

export const tilesView = new Surface(document.querySelector("#tiles canvas"), {
  axes: "y",
  draw: drawTileGraph,
  hover: hoverTileGraph,
  click: clickTileGraph,
  margin: { left: 8, top: 22 },
  limits: [1e-4, 1e6],
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

// The chosen chain; without one the chosen pair, else the heaviest pair of the chosen launch, else the first to look
// at.
export function chainNow() {
  if (state.pair) return state.chain ?? state.pair;
  const launch = state.launch ?? state.tile?.[0] ?? null;
  const near = launch === null ? [] : [heaviestPair(launch, "consumer"), heaviestPair(launch, "producer")];
  const small = (i) => launches.tiles[pairs.producer[i]] + launches.tiles[pairs.consumer[i]] <= 600;
  const best = launch === null ? rankedEdges().map((e) => e.pair) : [];
  const i = [...near, best.find(small), best[0]].find((p) => p !== undefined && p >= 0);
  return i === undefined ? [] : [pairs.producer[i], pairs.consumer[i]];
}

export async function showTiles() {
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
    ...now.flatMap((i) => [loadGrid(i), laneTables.load(laneOf[i])]),
  ]);
  if (chain.key !== key) return; // another chain was chosen meanwhile
  for (const part of parts) bundle(part);
  findFree(parts);
  openTiles();
  sayTiles();
}

const APART = 5; // pixels between tiles of the longest column at which they can be told apart

// All tiles where they can be told apart, else some of them, the selected one in the middle.
function openTiles() {
  tilesView.resize(); // the panel may have just opened
  tilesView.fit();
  const column = state.tile ? chain.launches.indexOf(state.tile[0]) : -1;
  chain.partly = tilesView.width > 0 && tilesView.view.ky < APART;
  if (!chain.partly) return;
  tilesView.view.ky = APART;
  tilesView.view.y = column < 0 ? 8 : tilesView.plotHeight / 2 - nodeY(column, state.tile[1]) * APART;
  tilesView.moved();
}

export const nodeY = (column, tile) => ((tile + 0.5) * chain.height) / launches.tiles[chain.launches[column]];

// Consumers that share their parents share a bundle: p + c lines through one point stand for p * c edges.
function bundle({ a, b, link, block }) {
  if (!block.parent) {
    chain.left += links.edges[link];
    return;
  }
  const children = new Map();
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
      hazard: links.reuse[link] ? "reuse" : HAZARDS[links.hazard[link]],
    });
  }
}

// How many parents each tile has in the chain; a tile of a later column that has none is independent.
function findFree(parts) {
  chain.parents = chain.launches.map((i) => new Uint32Array(launches.tiles[i]));
  for (const { b, block } of parts) {
    block.set_of?.forEach((set, tile) => {
      if (set >= 0) chain.parents[b][tile] += block.indptr[set + 1] - block.indptr[set];
    });
  }
  const known = chain.launches.map((_, k) => k > 0 && parts.filter((p) => p.b === k).every((p) => p.block.set_of));
  chain.free = chain.parents.map((counts, k) => (known[k] ? counts.reduce((n, c) => n + (c ? 0 : 1), 0) : 0));
}

const isFree = (column, tile) => chain.free[column] > 0 && chain.parents[column][tile] === 0;

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
  const extended = (i) =>
    i < 0 ? null : [...new Set([...now, pairs.producer[i], pairs.consumer[i]])].sort((p, q) => p - q);
  const grown = (i) => (extended(i)?.length > now.length ? extended(i) : null);
  if (now.length) {
    parts.push(
      button(
        "+ producer",
        "Add the launch that the first one depends on most",
        grown(heaviestPair(now[0], "consumer")),
      ),
    );
    parts.push(
      make("span", (now.length > 2 ? "launches " : "") + now.join(" → "), {
        title: now.map((i) => text(launches.kernel, i)).join("\n"),
        class: "name",
      }),
    );
    parts.push(
      button(
        "+ consumer",
        "Add the launch that depends most on the last one",
        grown(heaviestPair(now.at(-1), "producer")),
      ),
    );
    if (now.length > 2) parts.push(button("shorter", "Without the last launch", now.slice(0, -1)));
  }
  box.replaceChildren(...parts);
}

const columnX = (column) => tilesView.margin.left + (column + 0.5) * tilesView.view.kx;
const tileY = (column, tile) => tilesView.toScreen(0, nodeY(column, tile))[1];
const radius = (column) =>
  Math.min(Math.max((0.42 * tilesView.view.ky * chain.height) / launches.tiles[chain.launches[column]], 0.8), 8);

// The tile that others are dimmed beside: under the pointer, else selected.
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
  drawBundles(c, focus ? 0.14 : chain.lines > 3_000 ? 0.25 : 0.55, null);
  if (focus) drawBundles(c, 1, focus);
  for (let column = 0; column < chain.launches.length; column++) drawColumn(c, column, near);
  drawColumnNames(c);
}

// All edges, or those of one tile.
function drawBundles(c, alpha, only) {
  const width = tilesView.width;
  const seen = (y0, y1) => Math.max(y0, y1) > 0 && Math.min(y0, y1) < tilesView.height;
  const curved = chain.lines < 4_000;
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

// Direct parents and children of a tile: a set of tiles for each column.
function neighbours([column, tile]) {
  const near = chain.launches.map(() => new Set());
  near[column].add(tile);
  for (const { a, b, parents, users } of chain.bundles) {
    if (b === column && users.includes(tile)) for (const p of parents) near[a].add(p);
    if (a === column && parents.includes(tile)) for (const u of users) near[b].add(u);
  }
  return near;
}

const NOT_BEGUN = 0,
  RUNNING = 1,
  ENDED = 2;

// What a tile does at the kept moment: in the schedule beside, where one is chosen, else as recorded.
function doing(launch, tile) {
  const table = laneTables.ready(laneOf[launch]);
  const life = state.beside
    ? simulatedLife(launch, tile)
    : table?.sm
      ? [0, table.life[tile]].map((d) => startOf(launch) + (table.begin[tile] + d) * TENTH_NS)
      : null;
  if (!life) return null;
  const at = state.beside ? state.time - simulatedShift(simulated()) : state.time;
  return at < life[0] ? NOT_BEGUN : at < life[1] ? RUNNING : ENDED;
}

function drawColumn(c, column, near) {
  const launch = chain.launches[column];
  const [x, r] = [columnX(column), radius(column)];
  const colour =
    column === 0
      ? INK.producer
      : column === chain.launches.length - 1
        ? INK.consumer
        : INK.kernels[kernelColour.get(launches.kernel[launch])];
  for (let tile = 0; tile < launches.tiles[launch]; tile++) {
    const y = tileY(column, tile);
    if (y < tilesView.margin.top - r || y > tilesView.height + r) continue;
    const now = state.time === null ? null : doing(launch, tile);
    c.globalAlpha = near && !near[column].has(tile) ? 0.3 : 1;
    c.beginPath();
    const free = isFree(column, tile); // a square, whatever it does at the kept moment; what has not begun is hollow
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
      c.textAlign = column ? "left" : "right"; // edges leave the first column to the right
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
      10,
    );
  });
}

function hitTileGraph(sx, sy) {
  if (!chain.parents || sy < tilesView.margin.top) return null;
  const column = Math.floor((sx - tilesView.margin.left) / tilesView.view.kx);
  if (column < 0 || column >= chain.launches.length) return null;
  if (Math.abs(sx - columnX(column)) > Math.max(radius(column) + 4, 12)) return null;
  const count = launches.tiles[chain.launches[column]];
  const tile = Math.floor((tilesView.toWorld(0, sy)[1] * count) / chain.height);
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
  const among = (list, word, many) =>
    plural(
      list.reduce((n, tiles) => n + tiles.size, 0),
      word,
      many,
    );
  const table = grids.ready(gridOf[launch]);
  const lanes = laneTables.ready(laneOf[launch]);
  const parents = among(near.slice(0, column), "parent");
  const children = among(near.slice(column + 1), "child", "children");
  const lines = [
    `${shortKernel(launch)}, tile ${tile} ${coordinates(launch, tile)}`,
    `launch ${launch} · ${shortModule(launch) || text(launches.op, launch)}`,
    `${parents}, ${children} in the chain${isFree(column, tile) ? " · waits for none" : ""}`,
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

// What the launch reads and writes; a page knows buffers launch by launch.
function bufferLines(launch) {
  const words = (i) =>
    [text(buffers.name, i) || text(buffers.kind, i), text(buffers.dtype, i), text(buffers.shape, i)]
      .filter(Boolean)
      .join(" ");
  const named = (bit) => [
    ...new Set(usesOf[launch].filter((u) => uses.how[u] & bit).map((u) => words(uses.buffer[u]))),
  ];
  const line = (verb, names) =>
    names.length
      ? `${verb} ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`
      : "";
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

// The chosen pair stays if the chain holds it; else its first two launches that depend on each other.
function selectChain(next, tile) {
  const two = next.flatMap((b, k) => next.slice(0, k).map((a) => [a, b])).filter((p) => pairAt.has(p.join(",")));
  const pair = state.pair?.every((i) => next.includes(i)) ? state.pair : two[0];
  if (pair) select({ pair, chain: next.length > 2 ? next : null, tile });
}
