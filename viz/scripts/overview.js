// What stands above the lanes of the timeline: modules, how full the GPU is, a legend of kernels, and a chosen range.

import { FONT, fitted, INK, make } from "./canvas.js";
import {
  deviceSlots,
  doc,
  duration,
  launchCount,
  launches,
  launchName,
  plural,
  shortName,
  text,
  waves,
} from "./data.js";
import { svgOf } from "./gain.js";
import { endOf, kernelColour, lanesView, lastEnd, startOf } from "./lanes.js";

export const OVERVIEW = { modules: 36, full: 52, height: 16 }; // tops of the two strips, and how high each is
export const range = { from: null, to: null };

// Stretches of launches whose modules share their path up to its first number: layers and steps; else their first two
// names.
const moduleSpans = (() => {
  const spans = [];
  const place = (name) => {
    const parts = name.split(".");
    const number = parts.findIndex((part) => /^\d+$/.test(part));
    return parts.slice(0, number >= 0 ? number + 1 : 2).join(".");
  };
  for (let i = 0; i < launchCount; i++) {
    const name = place(text(launches.module, i));
    const last = spans.at(-1);
    if (last?.name === name) last.last = i;
    else spans.push({ name, first: i, last: i });
  }
  return spans.filter((span) => span.name);
})();

// Share of the GPU's slots that the waves of a launch fill.
const filledOf = (i) =>
  Math.min(launches.tiles[i] / (Math.max(Math.ceil(waves(i)), 1) * Math.max(deviceSlots(i), 1)), 1);

export function drawOverview(c) {
  const { margin: m, width, view: v } = lanesView;
  c.save();
  c.beginPath();
  c.rect(m.left, 0, width - m.left, m.top);
  c.clip();
  c.font = `11px ${FONT}`;
  c.textBaseline = "middle";
  c.textAlign = "left";
  moduleSpans.forEach((span, k) => {
    const from = Math.max(m.left + v.x + startOf(span.first) * v.kx, m.left);
    const to = Math.min(m.left + v.x + endOf(span.last) * v.kx, width);
    if (to <= from) return;
    c.fillStyle = k % 2 ? INK.line : INK.box;
    c.fillRect(from, OVERVIEW.modules, Math.max(to - from - 1, 0.5), OVERVIEW.height - 2);
    if (to - from < 26) return;
    c.fillStyle = INK.soft;
    c.fillText(
      fitted(c, span.name.split(".").slice(-2).join("."), to - from - 6),
      from + 3,
      OVERVIEW.modules + OVERVIEW.height / 2 - 1,
    );
  });
  c.fillStyle = INK.focus;
  // Per pixel: time-weighted share of slots that are filled.
  const columns = new Float64Array(Math.ceil(width - m.left) + 1);
  for (let i = 0; i < launchCount; i++) {
    const [from, to] = [v.x + startOf(i) * v.kx, v.x + endOf(i) * v.kx];
    const share = filledOf(i);
    for (let x = Math.max(Math.floor(from), 0); x < Math.min(to, columns.length); x++)
      columns[x] += share * (Math.min(to, x + 1) - Math.max(from, x));
  }
  c.globalAlpha = 0.7;
  columns.forEach((share, x) => {
    const high = Math.min(share, 1) * (OVERVIEW.height - 2);
    if (high > 0) c.fillRect(m.left + x, OVERVIEW.full + OVERVIEW.height - 2 - high, 1, high);
  });
  c.restore();
  c.fillStyle = INK.soft;
  c.font = `11px ${FONT}`;
  c.textAlign = "right";
  c.textBaseline = "middle";
  c.fillText("module", m.left - 7, OVERVIEW.modules + OVERVIEW.height / 2 - 1);
  c.fillText("filled", m.left - 7, OVERVIEW.full + OVERVIEW.height / 2 - 1);
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

// The range in words: how long, how much of it a kernel ran, how full the GPU was, and the operators with most time.
export function rangeWords() {
  const [from, to] = [range.from, range.to].sort((a, b) => a - b);
  if (!(to > from)) return "";
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
    `range of ${duration(to - from)}: ${plural(count, "launch", "launches")}`,
    `a kernel runs ${percent(covered / (to - from))} of it`,
    `slots ${percent(Math.min(filled / (to - from), 1))} filled; ${most.join(", ")}`,
  ].join(", ");
}

// Kernels by colour: those with most time have one of their own.
export function showKernelLegend() {
  const box = document.getElementById("lanes-legend");
  if (!box || !launchCount) return;
  const names = [...kernelColour].filter(([, rank]) => rank < 5).sort((a, b) => a[1] - b[1]);
  const entry = (rank, label, title) => {
    const svg = svgOf("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    svg.append(svgOf("rect", { width: 10, height: 10, rx: 2, fill: INK.kernels[rank] }));
    return make("span", [svg, document.createTextNode(label)], { title });
  };
  const entries = names.map(([place, rank]) =>
    entry(rank, shortName(doc.strings[place]) || "kernel", doc.strings[place]),
  );
  if (kernelColour.size > 5)
    entries.push(entry(5, plural(kernelColour.size - 5, "other kernel"), "kernels with less time"));
  box.replaceChildren(...entries);
}
