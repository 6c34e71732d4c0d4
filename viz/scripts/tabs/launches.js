// The view Launches: launches as nodes, dependent pairs as edges.

import { DASHES, FONT, fitted, INK, make, PALETTE, patternColour, patternMark, Surface } from "../canvas.js";
import {
  COVERAGES,
  deviceSlots,
  doc,
  duration,
  grid,
  launchCount,
  launches,
  launchName,
  launchPlace,
  links,
  linksOf,
  number,
  pairAt,
  pairCount,
  pairs,
  pairsOf,
  plural,
  shortKernel,
  size,
  TIMINGS,
  text,
  times,
  wavesWords,
} from "../data.js";
import { buildDrawing, commonModule, NODE, shownEdges, shownPair } from "../fold.js";
import { changed, found, select, state } from "../state.js";
import { GAP, layOut } from "./launch_layout.js";
import { drawMap, moveByMapOf } from "./minimap.js";
import { missesSome, overlayOf, showMatrix } from "./pairs.js";
import { showTensor } from "./tensor.js";
import { showTiles } from "./tile_graph.js";
import { showLanes } from "./timeline.js";

export const anyGain = pairs.gain_ns.some((g) => g > 0);
export const hiddenPatterns = new Set();
export let showReuse = false;
let widthBy = "bytes";
export let drawing;
let hovered = null;
let longest = 1;
for (let i = 0; i < launchCount; i++) longest = Math.max(longest, launches.duration_ns[i]);

const LEAST_SCALE = 0.5; // zooming out ends where a name of 11 px still has room in a node
const EDGE = 4; // px left free above and below the drawing
const TEXT = 11; // px on the screen, at least
const font = (weight, size) => `${weight} ${Math.max(size, TEXT / graphView.view.kx)}px ${FONT}`;

export const graphView = new Surface(document.querySelector("#graph canvas"), {
  axes: "both",
  draw: drawGraph,
  hover: hoverGraph,
  click: clickGraph,
  take: moveByMap,
  limits: [LEAST_SCALE, 4],
});

// The whole graph if it can be read so; otherwise its beginning, and the map in the corner shows the whole.
graphView.fit = () => {
  if (!drawing?.nodes.length) return;
  const { width, height } = graphView;
  if (Math.abs(width - drawing.laidFor) > 40) layOutFor(width);
  const k = scaleNow(width, height);
  const first = drawing.nodes.reduce((a, b) => (b.ay < a.ay ? b : a));
  const spare = width - drawing.width * k;
  const x = spare >= 0 ? spare / 2 : Math.min(Math.max(width / 2 - (first.ax + first.w / 2) * k, spare), 0);
  graphView.view = { kx: k, ky: k, x, y: Math.max((height - drawing.height * k) / 2, EDGE) };
  graphView.touched = false;
  graphView.redraw();
};

graphView.extent = () => [drawing.width, drawing.height];

export function rebuildGraph() {
  drawing = buildDrawing();
  layOutFor(graphView.width);
  drawing.flat = drawing.nodes.some((node) => node.module) ? buildDrawing(true) : drawing;
  sayGraph();
  graphView.redraw();
}

// Nodes as wide as the room allows: where a layer of them leaves some, they share it.
function layOutFor(width) {
  const lay = (wide) => {
    for (const node of drawing.nodes) node.w = wide;
    layOut(drawing);
  };
  lay(NODE.least);
  drawing.laidFor = width;
  const rows = new Map();
  for (const node of drawing.nodes) rows.set(node.ay, (rows.get(node.ay) ?? 0) + 1);
  const [room, base] = [width / scaleNow(width, graphView.height), drawing.width];
  const spare = (room - base) / Math.max(1, ...rows.values());
  if (spare <= 10) return;
  lay(Math.min(NODE.least + spare, NODE.most));
  // Rows of boxes that stand side by side share the room, too: then all of them get less.
  const grown = drawing.width - base;
  if (drawing.width > room) lay(NODE.least + ((drawing.nodes[0].w - NODE.least) * (room - base)) / grown);
}

const scaleNow = (width, height) =>
  Math.min(Math.max(Math.min(width / drawing.width, (height - 2 * EDGE) / drawing.height), LEAST_SCALE), 1.1);

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

// Shows a launch that is out of sight without changing the zoom more than needed.
export function showNode(launch) {
  graphView.resize(); // the panel below may have just opened
  const node = nodeFor(launch);
  const { view, width, height } = graphView;
  const [x, y] = graphView.toScreen(node.ax + node.w / 2, node.ay + node.h / 2);
  if (x > 60 && x < width - 60 && y > 40 && y < height - 40) return;
  view.x += width / 2 - x;
  view.y += height / 2 - y;
  graphView.moved();
}

// A drag that begins in the map belongs to it.
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

export function sayCentre(c, view, words) {
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
  const count = box.module
    ? "  ▾ fold"
    : box.open
      ? ` ${box.copy + 1} of ${box.count}  ▾ fold`
      : ` ×${box.count}  ▸ open`;
  const name =
    box.module ?? (commonModule(box.begin, box.begin + box.period) || plural(box.period, "launch", "launches"));
  const countWidth = c.measureText(count).width;
  const head = fitted(c, name, box.w - 24 - countWidth);
  const width = c.measureText(head + count).width;
  // A box that begins left of the window keeps its name in sight.
  const x = Math.min(Math.max(box.ax + 12, 12 - graphView.view.x / graphView.view.kx), box.ax + box.w - 12 - width);
  c.save();
  c.fillStyle = INK.box; // edges that enter the box pass behind its name
  c.globalAlpha = 0.85;
  c.fillRect(x - 4, box.ay + 7, width + 8, 20);
  c.restore();
  c.fillText(head + count, x, box.ay + 17);
}

function edgeWidth(edge) {
  const value = (e) => Math.log1p(widthBy === "gain" ? e.gain : e.bytes);
  drawing.widest ??= {
    bytes: Math.max(1, ...drawing.edges.map((e) => Math.log1p(e.bytes))),
    gain: Math.max(1, ...drawing.edges.map((e) => Math.log1p(e.gain))),
  };
  const share = value(edge) / drawing.widest[widthBy];
  return 1 + 4.5 * share ** 3;
}

function drawEdge(c, edge, chosen) {
  const name = doc.strings[pairs.pattern[edge.pair]];
  const touches = state.launch === null || edge.a === nodeFor(state.launch) || edge.b === nodeFor(state.launch);
  const lit = chosen || hovered === edge;
  c.globalAlpha = lit ? 1 : state.pair ? 0.3 : touches ? 0.85 : 0.22;
  const misses = edge.pairs.some(missesSome);
  c.strokeStyle = c.fillStyle = misses ? INK.missing : patternColour(name);
  c.lineWidth = edgeWidth(edge) + (lit || misses ? 2 : 0);
  c.setLineDash(pairs.reuse_only[edge.pair] ? [1, 4] : (DASHES[name] ?? []));
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

export const nodeFor = (launch) => drawing.nodes[drawing.nodeOf[launch]];

function nodeFrame(node) {
  if (state.pair && nodeFor(state.pair[0]) === node) return [INK.producer, 2.6];
  if (state.pair && nodeFor(state.pair[1]) === node) return [INK.consumer, 2.6];
  if (state.launch !== null && nodeFor(state.launch) === node) return [INK.focus, 2.6];
  return [hovered === node ? INK.soft : INK.line, 1.3];
}

// A second card behind: more than one launch.
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
  const both = graphView.view.kx > 0.85; // room for two lines
  c.textBaseline = both ? "alphabetic" : "middle";
  const line = y + (both ? 18 : h / 2 - 1);
  c.textAlign = "right";
  c.font = font(400, 11);
  c.fillStyle = INK.soft;
  const time = duration(took);
  const timeWide = c.measureText(time).width;
  const name = node.module ? `▸ ${nameInside(node)}` : launchName(i);
  c.font = font(600, 12);
  const told = both || c.measureText(name).width < w - 26 - timeWide; // a name comes before a time
  c.font = font(400, 11);
  if (told) c.fillText(time, x + w - 9, line);
  c.textAlign = "left";
  const place = node.module ? `${plural(node.period, "launch", "launches")}, opened by a click` : launchPlace(i);
  if (both) c.fillText(fitted(c, place, w - 18), x + 9, y + 34);
  c.font = font(600, 12);
  c.fillStyle = INK.ink;
  c.fillText(fitted(c, name, told ? w - 26 - timeWide : w - 18), x + 9, line);
  c.globalAlpha = 1;
}

// The path of a module without what the box around it is called.
function nameInside({ module, parent }) {
  const around = parent.parent ? (parent.module ?? commonModule(parent.begin, parent.begin + parent.period)) : "";
  return around && module.startsWith(`${around}.`) ? module.slice(around.length + 1) : module;
}

// A folded node is found when the launch of any of its copies is.
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
      `${now.period} launches in each copy`,
    ];
  if (now.module)
    return [
      now.module,
      `${plural(now.period, "launch", "launches")} · ${duration(now.duration_ns)}`,
      "a click opens it",
    ];
  return "launch" in now ? launchLines(now.launch, now.count) : edgeLines(now);
}

function launchLines(i, copies = 1) {
  const like = copies > 1 ? ` (and ${copies - 1} like it)` : "";
  const lines = [
    text(launches.kernel, i) || `launch ${i}`,
    [text(launches.op, i), text(launches.module, i)].filter(Boolean).join(" in "),
    `launch ${i}${like} · grid ${times(grid(i))} · ${plural(launches.tiles[i], "tile")} · ${wavesWords(i)} waves`,
    `${duration(launches.duration_ns[i])} ${TIMINGS[launches.timing[i]]} · accesses ${COVERAGES[launches.coverage[i]]}`,
  ];
  const note = text(launches.note, i);
  return [...lines, note].filter(Boolean);
}

function edgeLines(edge) {
  const i = edge.pair;
  const lines = [
    `${launchName(pairs.producer[i])} → ${launchName(pairs.consumer[i])}`,
    `${doc.strings[pairs.pattern[i]]} · ${hazardWords(i)} · ${number(shownEdges(i))} edges · ${size(pairs.bytes[i])}`,
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
    ["WAW", pairs.waw[i]],
  ];
  return (
    names
      .filter(([, n]) => n > 0)
      .map(([name]) => name)
      .join(" ") || "no hazard"
  );
}

function clickGraph(x, y) {
  const hit = hitGraph(x, y);
  if (!hit) return select({});
  if (hit.boxed || hit.module) return toggleGroup(hit);
  if ("launch" in hit) return select({ launch: hit.launch });
  const i = hit.pairs.find((p) => overlayOf.has(p)) ?? hit.pair;
  select({ pair: [pairs.producer[i], pairs.consumer[i]] });
}

// Opening keeps the header that was clicked under the pointer.
export function toggleGroup(box) {
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

// Arrow keys: along the heaviest dependency up and down, by issue order left and right.
export function walkGraph(key) {
  if (!launchCount) return;
  if (state.launch === null) return select({ launch: 0 });
  const here = state.launch;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = here + (key === "ArrowLeft" ? -1 : 1);
    return select({ launch: Math.min(Math.max(next, 0), launchCount - 1) });
  }
  const next = heaviestPair(here, key === "ArrowUp" ? "consumer" : "producer");
  if (next >= 0) select({ launch: key === "ArrowUp" ? pairs.producer[next] : pairs.consumer[next] });
}

export function heaviestPair(launch, role) {
  let best = -1;
  for (const i of pairsOf[launch]) {
    if (pairs[role][i] === launch && shownPair(i) && (best < 0 || pairs.bytes[i] > pairs.bytes[best])) best = i;
  }
  return best;
}

export function buildLegend() {
  const counts = new Map();
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
      title: "Show or hide",
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
      title: "Hazards that exist only because the allocator handed memory out again, and how many pairs have some",
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
  const marks = doc.summary.coverage.conservative
    ? [make("span", "dashed frame: conservative", { class: "says" })]
    : [];
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

export function describeLaunch() {
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
    ["registers", number(launches.registers[i])],
  ];
  const list = make(
    "dl",
    rows.filter(([, v]) => v).flatMap(([k, v]) => [make("dt", k), make("dd", v)]),
  );
  const parts = [make("h3", `${i}  ${shortKernel(i)}`), list];
  const kernel = text(launches.kernel, i);
  if (kernel && kernel !== shortKernel(i)) parts.splice(1, 0, make("p", kernel, { class: "full" }));
  if (text(launches.note, i)) parts.push(make("p", text(launches.note, i), { class: "mark" }));
  panel.replaceChildren(...parts);
}
