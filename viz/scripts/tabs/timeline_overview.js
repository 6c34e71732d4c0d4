// What stands above the lanes of the timeline: modules in modules, launches, how full the GPU is, a legend of
// kernels, and a chosen range.

import { FONT, fitted, INK, make } from "../canvas.js";
import {
  deviceSlots,
  doc,
  duration,
  launchCount,
  launches,
  launchName,
  launchPlace,
  plural,
  shortName,
  text,
  waves,
} from "../data.js";
import { select, state } from "../state.js";
import { svgOf } from "./gain.js";
import { levelsIn, moduleLevels } from "./module_levels.js";
import { endOf, kernelColour, lanesView, lastEnd, launchColour, startOf } from "./timeline.js";

const AXIS = 20; // px: the axis; below it a row for each level of modules, one of launches, and one of full slots
const ROW = 14;
const MOST_SHARE = 0.5; // of the view's height; less where a schedule stands below the recorded lanes
let shownRows = 0;
export const range = { from: null, to: null };

// The rows above the lanes take at most half of the view: with less room there are fewer levels of modules.
export function arrangeOverview() {
  const room = Math.floor((lanesView.height * MOST_SHARE * (state.beside ? 0.7 : 1) - AXIS) / ROW) - 2;
  shownRows = Math.min(moduleLevels.length, Math.max(room, 2));
  lanesView.margin.top = AXIS + (shownRows + 2) * ROW + 2;
}

export const onAxis = (y) => y < AXIS;

// The rows as they are drawn: the names of each level's bars, and the middle of each row in px.
export const overviewRows = () => [
  ...levelsNow().map((spans, row) => ({ names: spans.map((span) => span.name), y: topOf(row) + ROW / 2 })),
  { names: ["launches"], y: topOf(shownRows) + ROW / 2 },
];

const topOf = (row) => AXIS + row * ROW;

const levelsNow = () =>
  levelsIn(
    shownRows,
    Math.max(timeAt(lanesView.margin.left), 0),
    Math.min(timeAt(lanesView.width), lastEnd()),
    startOf,
    endOf,
  );

// Share of the GPU's slots that the waves of a launch fill.
const filledOf = (i) =>
  Math.min(launches.tiles[i] / (Math.max(Math.ceil(waves(i)), 1) * Math.max(deviceSlots(i), 1)), 1);

export function drawOverview(c) {
  const { margin: m, width } = lanesView;
  c.save();
  c.beginPath();
  c.rect(m.left, 0, width - m.left, m.top);
  c.clip();
  c.textBaseline = "middle";
  c.textAlign = "left";
  levelsNow().forEach((spans, row) => {
    spans.forEach((span, k) => {
      drawBar(c, row, [startOf(span.first), endOf(span.last)], k % 2 ? INK.line : INK.box, span.name);
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
  [...rows.slice(0, shownRows), "launches", "filled"].forEach((word, row) => {
    c.fillText(word, m.left - 6, topOf(row) + ROW / 2 - 1);
  });
}

// A bar of a row with its name where there is room: of "layers.3" the number, if nothing else fits.
function drawBar(c, row, [begin, end], colour, name, chosen = false) {
  const { margin: m, width, view: v } = lanesView;
  const from = Math.max(m.left + v.x + begin * v.kx, m.left);
  const to = Math.min(m.left + v.x + end * v.kx, width);
  if (to <= from) return;
  c.fillStyle = colour;
  c.fillRect(from, topOf(row), Math.max(to - from - (to - from > 3 ? 1 : 0), 0.5), ROW - 1);
  if (to - from < 14) return;
  c.font = `${chosen ? 600 : 400} 11px ${FONT}`;
  c.fillStyle = chosen ? INK.page : INK.ink; // a chosen launch is drawn in a strong colour
  const room = to - from - 5;
  const last = name.split(".").at(-1);
  const shown = c.measureText(name).width > room && c.measureText(last).width <= room ? last : fitted(c, name, room);
  if (shown.length > 2 || shown === name || shown === last) c.fillText(shown, from + 2, topOf(row) + ROW / 2 - 0.5);
}

// Per pixel: time-weighted share of slots that are filled.
function drawFilled(c) {
  const { margin: m, width, view: v } = lanesView;
  const columns = new Float64Array(Math.ceil(width - m.left) + 1);
  for (let i = 0; i < launchCount; i++) {
    const [from, to] = [v.x + startOf(i) * v.kx, v.x + endOf(i) * v.kx];
    const share = filledOf(i);
    for (let x = Math.max(Math.floor(from), 0); x < Math.min(to, columns.length); x++)
      columns[x] += share * (Math.min(to, x + 1) - Math.max(from, x));
  }
  c.fillStyle = INK.focus;
  c.globalAlpha = 0.7;
  columns.forEach((share, x) => {
    const high = Math.min(share, 1) * (ROW - 2);
    if (high > 0) c.fillRect(m.left + x, topOf(shownRows + 2) - 2 - high, 1, high);
  });
}

// The module's stretch or the launch under a point of the rows above the lanes.
function barAt(x, y) {
  const row = Math.floor((y - AXIS) / ROW);
  if (x < lanesView.margin.left || row < 0 || row > shownRows) return null;
  const time = timeAt(x);
  const under = (first, last) => startOf(first) <= time && time < endOf(last);
  if (row < shownRows) return levelsNow()[row]?.find(({ first, last }) => under(first, last)) ?? null;
  for (let i = 0; i < launchCount; i++) if (under(i, i)) return { launch: i };
  return null;
}

export function hoverOverview(x, y) {
  const bar = barAt(x, y);
  if (!bar) return null;
  if (!("launch" in bar))
    return [bar.path, ...wordsBetween(startOf(bar.first), endOf(bar.last)), "click: fill the view"];
  const i = bar.launch;
  return [launchName(i), `launch ${i} · ${launchPlace(i)}`, duration(launches.duration_ns[i])];
}

export function clickOverview(x, y) {
  const bar = barAt(x, y);
  if (!bar) return;
  if ("launch" in bar) return select({ launch: bar.launch });
  const [from, to] = [startOf(bar.first), endOf(bar.last)];
  const kx = (lanesView.plotWidth - 8) / (to - from);
  Object.assign(lanesView.view, { kx, x: 4 - from * kx });
  lanesView.moved();
}

// With Shift, a drag over the lanes chooses a range of time.
export function beginRange(x) {
  range.from = range.to = timeAt(x);
}

export function moveRange(x) {
  range.to = timeAt(x);
  lanesView.redraw();
}

const timeAt = (x) => Math.min(Math.max(lanesView.toWorld(x, 0)[0], 0), lastEnd());

export function clearRange() {
  range.from = range.to = null;
  lanesView.redraw();
}

export function drawRange(c) {
  if (range.from === null) return;
  const [from, to] = [range.from, range.to].sort((a, b) => a - b).map((t) => lanesView.toScreen(t, 0)[0]);
  c.fillStyle = INK.focus;
  c.globalAlpha = 0.16;
  c.fillRect(from, lanesView.margin.top, Math.max(to - from, 1), lanesView.plotHeight);
  c.globalAlpha = 1;
}

export function rangeWords() {
  const [from, to] = [range.from, range.to].sort((a, b) => a - b);
  return to > from ? `range of ${wordsBetween(from, to).join(", ")}` : "";
}

// A stretch of time in words: how long, how much of it a kernel ran, how full the GPU was, and the operators with most
// time.
function wordsBetween(from, to) {
  let [covered, filled, count, reached] = [0, 0, 0, from];
  const spent = new Map();
  const inside = Array.from({ length: launchCount }, (_, i) => i)
    .filter((i) => startOf(i) < to && endOf(i) > from)
    .sort((a, b) => startOf(a) - startOf(b));
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
  const percent = (share) => `${Math.round(100 * share)}%`;
  const most = [...spent]
    .sort((p, q) => q[1] - p[1])
    .slice(0, 3)
    .map(([name, ns]) => `${name} ${percent(ns / (to - from))}`);
  return [
    `${duration(to - from)}: ${plural(count, "launch", "launches")}`,
    `a kernel runs ${percent(covered / (to - from))} of it`,
    `slots ${percent(Math.min(filled / (to - from), 1))} filled; ${most.join(", ")}`,
  ];
}

// What the colours stand for: operators, as everywhere; kernels of one operator also by name, without the beginning
// that they share with another.
function kernelLabels(places) {
  const operators = places.map((place) => {
    const launch = launches.kernel.indexOf(place);
    return text(launches.op, launch) && launchName(launch);
  });
  const kernels = places.map((place) => shortName(doc.strings[place]) || "kernel");
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

// Kernels by colour: those with most time have one of their own.
export function showKernelLegend() {
  const box = document.getElementById("lanes-legend");
  if (!box || !launchCount) return;
  const names = [...kernelColour].filter(([, rank]) => rank < 5).sort((a, b) => a[1] - b[1]);
  const labels = kernelLabels(names.map(([place]) => place));
  const entry = (rank, label, title) => {
    const svg = svgOf("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    svg.append(svgOf("rect", { width: 10, height: 10, rx: 2, fill: INK.kernels[rank] }));
    return make("span", [svg, document.createTextNode(label)], { title, ...(label.length < 16 && { class: "whole" }) });
  };
  const entries = names.map(([place, rank]) => entry(rank, labels[rank], doc.strings[place]));
  if (kernelColour.size > 5)
    entries.push(entry(5, plural(kernelColour.size - 5, "other kernel"), "kernels with less time"));
  box.replaceChildren(...entries);
}
