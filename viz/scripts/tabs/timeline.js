// The view Timeline: lanes of SMs over time, with tiles as measured or as the block scheduler would assign them.

import { FONT, fitted, INK, Surface } from "../canvas.js";
import {
  blocks,
  coordinates,
  doc,
  duration,
  laneOf,
  laneTables,
  launchCount,
  launches,
  links,
  loadGrid,
  number,
  pairs,
  pairsOf,
  plural,
  served,
  shortKernel,
  shortModule,
  text,
  tileBase,
  timed,
} from "../data.js";
import { shownLinks } from "../fold.js";
import { select, state, writeHash } from "../state.js";
import { sayCentre, showReuse } from "./launches.js";
import {
  drawSimulated,
  hitSimulated,
  scheduleAt,
  simulated,
  simulatedBox,
  simulatedLife,
  simulatedShift,
} from "./simulated_lanes.js";
import { tilesView } from "./tile_graph.js";
import { drawLaneAxes } from "./timeline_axes.js";
import {
  arrangeOverview,
  beginRange,
  clearRange,
  clickOverview,
  drawOverview,
  drawRange,
  hoverOverview,
  moveRange,
  onAxis,
  range,
  rangeWords,
} from "./timeline_overview.js";

export const lanesView = new Surface(document.querySelector("#lanes canvas"), {
  axes: "x",
  draw: drawLanes,
  hover: hoverLanes,
  click: clickLanes,
  take: scrub,
  margin: { left: 60, top: 72 },
  limits: [1e-9, 40],
});
const MOST_TILES = 60_000; // drawn one by one in one picture: more would cost more than a frame
const MOST_ARROWS = 300;
const origin = launchCount ? launches.begin_ns.reduce((a, b) => Math.min(a, b)) : 0;
// Ready: found, not still looked for.
export const laneFlow = { key: "", parents: [], children: [], count: 0, ready: true };
let lanesShown = "";
// Simulated: drawn as shares of the GPU's busy slots, not SM by SM.
export const aggregation = { any: false, simulated: false };

export const startOf = (i) => launches.begin_ns[i] - origin;
export const endOf = (i) => startOf(i) + Math.max(launches.duration_ns[i], 1);
export const lastEnd = () => {
  let end = 1;
  for (let i = 0; i < launchCount; i++) end = Math.max(end, endOf(i));
  return end;
};
export const rowCount = Math.max(doc.summary.sms, 1);
// Recorded lanes above; below a strip of words, those of the chosen schedule, if any.
const stripRows = () => 20 / Math.max(lanesView.view.ky, 1e-6);
export const simulatedRow = () => rowCount + stripRows();
const laneHeight = () => (state.beside ? (lanesView.plotHeight - 20) / 2 : lanesView.plotHeight);

// Kernels with most time have colours of their own, the rest share the last.
export const kernelColour = (() => {
  const spent = new Map();
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
      endOf(state.launch) + launches.duration_ns[state.launch],
    ];
  return [0, lastEnd()];
}

// As much of the simulated pair as fits into twice the recorded time.
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

export async function showLanes() {
  const key = `${state.pair ? state.pair.join(",") : String(state.launch)},${state.beside !== ""}`;
  if (key !== lanesShown) {
    lanesShown = key;
    arrangeOverview();
    lanesView.fit();
  }
  await findFlow();
  lanesView.redraw();
}

// Parents and children of the selected tile, from every relation of its launch.
async function findFlow() {
  const key = state.tile ? state.tile.join(",") + (showReuse ? "r" : "") : "";
  if (key === laneFlow.key) return;
  Object.assign(laneFlow, { key, parents: [], children: [], count: 0, ready: !key });
  if (!key) return;
  const [launch, tile] = state.tile;
  const flow = { parents: [], children: [], count: 0 };
  const kept = new Set(); // a tile that two hazards link is one parent
  const keep = (list, other, t, reuse) => {
    const one = `${list === flow.parents} ${other} ${t}`;
    if (kept.has(one)) return;
    kept.add(one);
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
          keep(flow.parents, from, block.parent[e], reuse);
      } else {
        const sets = setsWith(block, tile);
        if (!sets.size) continue;
        for (const [t, set] of block.set_of.entries()) if (sets.has(set)) keep(flow.children, to, t, reuse);
      }
    }
  }
  const used = new Set([launch, ...flow.parents.map((p) => p[0]), ...flow.children.map((c) => c[0])]);
  await Promise.all([...used].flatMap((i) => [laneTables.load(laneOf[i]), loadGrid(i)]));
  if (laneFlow.key === key) Object.assign(laneFlow, flow, { ready: true });
}

export function setsWith(block, parent) {
  const sets = new Set();
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
  const moved = shift
    ? `, moved by ${shift > 0 ? "+" : "−"}${duration(Math.abs(shift))} to begin with the selection`
    : "";
  c.font = `600 11px ${FONT}`;
  c.fillStyle = INK.ink;
  c.textAlign = "left";
  c.textBaseline = "middle";
  c.fillText(
    fitted(c, `${schedule.name}, simulated: ${duration(schedule.time_ns)} in all${moved}`, w - 8),
    m.left + 4,
    y + 10,
  );
}

// A drag along the axis scrubs: the moment it points to is kept, and the tile graph shows it too.
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
  if (!timed || (!moving && (!onAxis(y) || x < lanesView.margin.left))) return false;
  setTime(Math.min(Math.max(lanesView.toWorld(x, 0)[0], 0), lastEnd()));
  return true;
}

export function setTime(time) {
  state.time = time;
  writeHash();
  lanesView.redraw();
  tilesView.redraw();
}

export function stepTime(steps) {
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

// Tiles of each band that run at the kept moment.
function runningWords() {
  let [count, known] = [0, true];
  const names = new Set();
  for (let i = 0; i < launchCount; i++) {
    if (state.time < startOf(i) || state.time >= endOf(i)) continue;
    names.add(shortKernel(i));
    const table = laneTables.ready(laneOf[i]);
    if (!table?.sm) known = false;
    const at = (state.time - startOf(i)) / TENTH_NS;
    for (let t = 0; t < table?.sm?.length; t++)
      if (table.begin[t] <= at && at < table.begin[t] + table.life[t]) count++;
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

export function launchColour(i) {
  if (state.pair) return i === state.pair[0] ? INK.producer : i === state.pair[1] ? INK.consumer : INK.muted;
  if (state.launch !== null) return i === state.launch ? INK.focus : INK.muted;
  return INK.kernels[kernelColour.get(launches.kernel[i])];
}

// Returns how many tiles it drew one by one.
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

export const TENTH_NS = 0.1; // begins and lives travel in tenths of a nanosecond

// The lanes that a tile holds, [SM, slot]: its own, and for a cluster the same slot of the next SMs, after the last the
// next slot of the first.
const lanesOf = (table, t) =>
  Array.from({ length: table.cluster ?? 1 }, (_, k) => [
    (table.sm[t] + k) % rowCount,
    table.slot[t] + Math.floor((table.sm[t] + k) / rowCount),
  ]);

function drawTiles(c, table, x) {
  const { kx, ky } = lanesView.view;
  const [top, right] = [lanesView.toScreen(0, 0)[1], lanesView.width];
  const { left } = lanesView.margin;
  const high = ky / table.slots;
  // One of sixteen slots would be a tenth of a pixel: a tile stays visible, zooming in shows its true share.
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

// Too small for single tiles: how full the whole device is over the launch's time, as a shade, for the axis counts SMs.
function drawLoad(c, table, x) {
  table.load ??= loadOf(table);
  const { load, span } = table.load;
  const top = lanesView.toScreen(0, 0)[1];
  const height = rowCount * lanesView.view.ky;
  const wide = (span * lanesView.view.kx) / load.length;
  load.forEach((share, k) => {
    c.globalAlpha = share;
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
    const [from, to] = [(table.begin[t] / span) * bins, ((table.begin[t] + table.life[t]) / span) * bins];
    for (let k = Math.floor(from); k < Math.min(to, bins); k++) load[k] += Math.min(to, k + 1) - Math.max(from, k);
  }
  return {
    load: load.map((v) => Math.min((v * (table.cluster ?? 1)) / (rowCount * table.slots), 1)),
    span: span * TENTH_NS,
  };
}

export function drawShares(c, table, x, first = 0) {
  const { kx, ky } = lanesView.view;
  const top = lanesView.toScreen(0, first)[1];
  const wide = (table.end * kx) / table.bins;
  for (let row = 0; row < table.rows; row++) {
    for (let k = 0; k < table.bins; k++) {
      const share = table.share[row * table.bins + k];
      if (!share) continue;
      c.globalAlpha = share / 100;
      c.fillRect(x + k * wide, top + row * ky, wide + 0.3, ky);
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

// Arrows from the selected tile's parents and to its children; `boxOf` says where a tile is drawn.
function drawFlow(c, boxOf = tileBox) {
  const here = state.tile && boxOf(...state.tile);
  if (!here) return;
  c.lineWidth = 1.2;
  c.globalAlpha = laneFlow.count > 40 ? 0.45 : 0.85;
  for (const [launch, tile, reuse] of laneFlow.parents)
    drawArrow(c, boxOf(launch, tile), here, reuse ? INK.reuse : INK.producer);
  for (const [launch, tile, reuse] of laneFlow.children)
    drawArrow(c, here, boxOf(launch, tile), reuse ? INK.reuse : INK.consumer);
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
  const says =
    state.time !== null && launchCount
      ? [runningWords()]
      : [measured ? "measured tiles" : "modelled: tiles in dispatch order", "idle slots shaded"];
  if (aggregation.any)
    says.push(
      `aggregated: ${aggregation.simulated ? "bars" : "shades"} are shares of busy slots, zoom in for single tiles`,
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
  const [time, row] = lanesView.toWorld(sx, sy);
  if (row >= rowCount) return state.beside ? hitSimulated(time, row - simulatedRow()) : null;
  let launch = null;
  for (let i = 0; i < launchCount; i++) {
    if (time < startOf(i) || time > endOf(i)) continue;
    const table = laneTables.ready(laneOf[i]);
    launch ??= { launch: i, tile: null };
    if (!table?.sm) continue;
    const at = (time - startOf(i)) / TENTH_NS;
    for (let t = 0; t < table.tiles; t++) {
      if (at < table.begin[t] || at > table.begin[t] + table.life[t]) continue;
      if (
        lanesOf(table, t).some(([sm, slot]) => sm === Math.floor(row) && slot === Math.floor((row % 1) * table.slots))
      )
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
    table?.sm
      ? `SM ${table.sm[tile]}, slot ${table.slot[tile]} · begins ${when[0]} into the launch, takes ${when[1]}`
      : "",
    besideWords(launch, tile),
  ].filter(Boolean);
}

export function besideWords(launch, tile) {
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
  // A click must not jump away from what was clicked: the window stays while tiles are followed.
  lanesShown = `${hit.launch},${state.beside !== ""}`;
  select({ launch: hit.launch, tile });
}
