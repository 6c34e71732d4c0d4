// The lanes of a simulated schedule: which tile runs on which SM, when, drawn below the recorded ones.

import { INK, make } from "../canvas.js";
import { deviceSlots, doc, hasLanes, keeper, launchCount, launches, tileBase } from "../data.js";
import { ABOUT } from "../glossary.js";
import { state } from "../state.js";
import { tilesView } from "./tile_graph.js";
import { aggregation, kernelColour, lanesView, launchColour, rowCount, startOf } from "./timeline.js";

export const scheduleLanes = doc.schedules.map((s) => s.lanes);
const simulatedTables = keeper(scheduleLanes);
export const scheduleAt = () => doc.schedules.findIndex((s) => s.name === state.beside);
const SHARES = 1_000; // steps of a share of the GPU's slots, as viz/tables/schedules.py counts them
const MOST_BOXES = 12_000; // drawn one by one in one picture

// The chosen schedule, its tiles placed in their SMs; null where none is chosen or it is still being unpacked.
export function simulated() {
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

const slotsOf = (launch) => Math.max(launches.blocks_per_sm[launch], 1);

// A tile takes the first gap of its height: one slot of its launch's, whatever else is on the SM.
function placeInSms(table) {
  const count = tileBase[launchCount];
  const [begin, end, top, launchOf] = [
    new Float64Array(count),
    new Float64Array(count),
    new Float32Array(count),
    new Int32Array(count),
  ];
  for (let i = 0; i < launchCount; i++) {
    for (let t = tileBase[i]; t < tileBase[i + 1]; t++) {
      begin[t] = table.open[i] + table.begin[t];
      end[t] = begin[t] + table.life[t];
      launchOf[t] = i;
    }
  }
  const order = Uint32Array.from(begin.keys()).sort((p, q) => begin[p] - begin[q] || p - q);
  const residents = Array.from({ length: rowCount }, () => []);
  for (const t of order) {
    const sm = Math.max(Math.min(table.sm[t], rowCount - 1), 0);
    const here = residents[sm].filter((other) => end[other] > begin[t]);
    const high = 1 / slotsOf(launchOf[t]);
    let y = 0;
    let place = 0;
    for (; place < here.length && top[here[place]] - y < high - 1e-5; place++)
      y = Math.max(y, top[here[place]] + 1 / slotsOf(launchOf[here[place]]));
    top[t] = Math.min(y, 1 - high); // where the gaps are too small, tiles are drawn over each other
    here.splice(place, 0, t);
    residents[sm] = here;
  }
  Object.assign(table, { begin, end, top, launchOf, order });
}

// Simulated time is moved so that the selection begins where it was recorded to begin.
export function simulatedShift(table) {
  const launch = state.pair ? state.pair[0] : (state.launch ?? state.tile?.[0] ?? null);
  return launch === null || !table.open ? 0 : startOf(launch) - table.open[launch];
}

// Lanes begin at `row` of the timeline, one row per SM.
export function drawSimulated(c, row) {
  const table = simulated();
  const { view: v, margin: m, plotWidth: w } = lanesView;
  const top = lanesView.toScreen(0, row)[1];
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
    const box = simulatedBox(table, t, row, shift);
    c.fillStyle = launchColour(table.launchOf[t]);
    c.fillRect(
      box.x,
      box.y,
      Math.max(box.w - (box.w > 8 ? 1 : 0), 0.5),
      box.h > 4 ? box.h - 1 : Math.max(box.h, Math.min(v.ky / 2, 1)),
    );
  }
}

export function simulatedBox(table, t, row, shift) {
  const { kx, ky } = lanesView.view;
  const [x, y] = lanesView.toScreen(table.begin[t] + shift, row + table.sm[t] + table.top[t]);
  return { x, y, w: (table.end[t] - table.begin[t]) * kx, h: ky / slotsOf(table.launchOf[t]) };
}

// A schedule that came aggregated: how full the GPU is over time, kernel by kernel, the named ones first.
function drawKernels(c, table, x0, top, high) {
  const wide = (table.end * lanesView.view.kx) / table.bins;
  const colours = Array.from({ length: table.rows }, (_, row) => kernelInk(table.kernels[row]));
  for (let k = 0; k < table.bins; k++) {
    if (x0 + (k + 1) * wide < lanesView.margin.left || x0 + k * wide > lanesView.width) continue;
    let level = 0;
    for (let row = 0; row < table.rows; row++) {
      const share = table.share[row * table.bins + k] / SHARES;
      c.fillStyle = colours[row];
      c.fillRect(x0 + k * wide, top + high * (1 - level - share), wide + 0.3, high * share);
      level += share;
    }
  }
}

const kernelInk = (name) => INK.kernels[kernelColour.get(doc.strings.indexOf(name)) ?? INK.kernels.length - 1];

// Too many for single tiles: how full the GPU is over time, kernel by kernel.
function drawMix(c, table, seen, [from, to], x0, top, high) {
  const bins = Math.max(Math.min(Math.round(lanesView.plotWidth / 2), 600), 1);
  const scale = bins / (to - from);
  const load = new Map();
  for (const t of seen) {
    const colour = launchColour(table.launchOf[t]);
    if (!load.has(colour)) load.set(colour, new Float64Array(bins));
    const column = load.get(colour);
    const [a, b] = [Math.max((table.begin[t] - from) * scale, 0), Math.min((table.end[t] - from) * scale, bins)];
    const share = 1 / deviceSlots(table.launchOf[t]);
    for (let k = Math.floor(a); k < b; k++) column[k] += (Math.min(b, k + 1) - Math.max(a, k)) * share;
  }
  const wide = (lanesView.view.kx * (to - from)) / bins;
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

// The tile at a time and a row of the simulated lanes.
export function hitSimulated(time, row) {
  const table = simulated();
  if (!table?.top) return null;
  const at = time - simulatedShift(table);
  const [sm, within] = [Math.floor(row), row % 1];
  for (let k = table.order.length - 1; k >= 0; k--) {
    const t = table.order[k];
    if (table.sm[t] !== sm || table.begin[t] > at || table.end[t] <= at) continue;
    if (within >= table.top[t] && within < table.top[t] + 1 / slotsOf(table.launchOf[t]))
      return { launch: table.launchOf[t], tile: t - tileBase[table.launchOf[t]] };
  }
  return null;
}

// When a tile runs in the chosen schedule, [begin, end] in ns; null where that is not known.
export function simulatedLife(launch, tile) {
  const table = simulated();
  if (!table?.top) return null;
  const t = tileBase[launch] + tile;
  return [table.begin[t], table.end[t]];
}

export function fillBeside() {
  const choice = document.getElementById("beside");
  const ran = doc.schedules.filter(hasLanes);
  choice.parentElement.hidden = !ran.length;
  choice.replaceChildren(
    make("option", "no schedule", { value: "" }),
    ...ran.map((s) => make("option", s.name, { value: s.name, title: ABOUT[s.name] ?? s.name })),
  );
}
