// The view Gain: the recorded time step by step, and every scheduler on the same scale.

import { INK, make } from "../canvas.js";
import { doc, duration, hasLanes, launchCount, served, timed } from "../data.js";
import { ABOUT, info } from "../glossary.js";
import { changed, state } from "../state.js";

const ROWS_BESIDE = 380; // px of a row beside its bar: name, time, share, gaps and margins, as the style has them

const PARTS = {
  work_ns: ["work", "tiles at work", "the tiles' time, were all slots always full"],
  wait_ns: ["wait", "tiles that wait", "slots held by tiles that wait or signal"],
  idle_ns: ["idle", "empty slots", "slots empty while some tile runs: partial waves, uneven tiles"],
  gap_ns: ["gap", "no tile runs", "gaps between launches"],
};

export function svgOf(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// One bar: `pieces` are [part, ns] from `from` on; `marks` are times at which a line crosses it. The scale is `longest`
// ns.
export function stackedBar(pieces, from, marks, longest) {
  const svg = svgOf("svg", { viewBox: "0 0 1000 17", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = from;
  for (const [part, ns] of pieces) {
    svg.append(
      svgOf("rect", {
        x: (1000 * x) / longest,
        y: 2,
        width: Math.max((1000 * ns) / longest, 0),
        height: 13,
        fill: INK.parts[part] ?? part,
      }),
    );
    x += ns;
  }
  for (const ns of marks)
    svg.append(
      svgOf("line", {
        x1: (1000 * ns) / longest,
        x2: (1000 * ns) / longest,
        y1: 0,
        y2: 17,
        stroke: INK.ink,
        "stroke-width": 1.5,
        "vector-effect": "non-scaling-stroke",
        "stroke-dasharray": "3 2",
      }),
    );
  return svg;
}

export function showGain() {
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
  const ran = doc.schedules.filter((s) => s.time_ns !== null);
  const { svg, longest } = bracketPicture(g, ran);
  const stream = g.stream_ns ?? ran.find((s) => s.name === "stream")?.time_ns;
  // As `tileprof simulate` compares: a recorded time may hold waiting of the host.
  const against = stream ?? g.recorded_ns;
  const base = stream ? `simulated stream order, ${duration(stream)}` : `the recorded ${duration(g.recorded_ns)}`;
  const caption = `% is against ${base}`;
  const chosen = ran.find((s) => s.name === state.beside);
  box.replaceChildren(
    make("div", [make("span", "all of them"), make("span", [svg]), make("span"), make("span")], {
      class: "rows",
      id: "bracket",
    }),
    gainKey(),
    make("h3", "Where the recorded time goes (% of it)"),
    make("div", waterfall("recorded", g.recorded_ns, recordedSteps(g), g, longest), { class: "rows", id: "waterfall" }),
    ...(chosen
      ? [
          make("h3", `Where the time of ${chosen.name} goes (% of it)`),
          make("div", waterfall(chosen.name, chosen.time_ns, simulatedSteps(chosen), g, longest), {
            class: "rows",
            id: "waterfall-beside",
          }),
        ]
      : []),
    make("h3", [
      document.createTextNode(
        doc.schedules.length ? "Schedulers, simulated; choose one to see it in the timeline " : "Bounds ",
      ),
      info("schedulers"),
    ]),
    make("p", caption, { class: "caption", id: "against" }),
    make(
      "div",
      [
        ...doc.schedules.flatMap((s) => scheduleRow(s, g, longest, against)),
        ...recordedRow(g, longest, against),
        ...boundRows(g, longest, against),
      ],
      { class: "rows", id: "schedulers" },
    ),
    ...(doc.skipped.length
      ? [
          make("p", `Too large to simulate here: ${doc.skipped.join(", ")}. tileprof simulate runs them.`, {
            class: "caption",
            id: "skipped",
          }),
        ]
      : []),
    ...(doc.policy && !doc.policy.refused ? policyRows(doc.policy) : []),
    ...(served.runner ? [make("h3", "Another scheduler, or other options"), served.runner()] : []),
  );
}

function noGain() {
  if (!launchCount) return "This trace holds no launches: there is nothing to gain.";
  if (doc.summary.dependencies_known === false) {
    return "The trace holds no accesses: dependencies between launches and gains are unknown.";
  }
  return timed ? "This page was made without bounds." : "This trace holds no times, so gains cannot be computed.";
}

// One line of time: what no schedule reaches, where the best one must lie, and where each scheduler stands.
// It stands in the column of the bars, on their scale: `longest` is the time at its right edge.
function bracketPicture(g, ran) {
  const [left, middle, line] = [1, 44, 12];
  const width = Math.max(document.getElementById("gains").clientWidth - ROWS_BESIDE, 240);
  const longest = Math.max(g.recorded_ns, ...ran.map((s) => s.time_ns));
  const reached =
    g.listed_ns && !ran.some((s) => s.name === "list") ? [...ran, { name: "list", time_ns: g.listed_ns }] : [...ran];
  const labels = bracketLabels(reached, longest);
  // A scale that leaves room for every label right of its mark.
  const scale = Math.min((width - 2 * left) / longest, ...labels.map((l) => (width - left - l.wide) / l.ns));
  const x = (ns) => left + scale * ns;
  const rows = placeLabels(labels, x);
  const height = middle + 18 + line * rows;
  const svg = svgOf("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `No schedule is faster than ${duration(g.bound_ns)}; recorded were ${duration(g.recorded_ns)}`,
  });
  const bar = (from, to, fill, title) => {
    const part = svgOf("rect", { x: x(from), y: middle - 6, width: Math.max(x(to) - x(from), 0), height: 12, fill });
    part.append(Object.assign(svgOf("title", {}), { textContent: title }));
    svg.append(part);
  };
  const best = Math.min(g.recorded_ns, g.listed_ns ?? Infinity, ...ran.map((s) => s.time_ns));
  bar(0, g.bound_ns, INK.muted, "no schedule is as fast");
  bar(g.bound_ns, best, INK.parts.idle, "the best schedule ends in here");
  bar(best, longest, INK.idle, "reached by a simulated schedule or by the recording");
  const say = (words, at, y, anchor, name) =>
    svg.append(
      Object.assign(svgOf("text", { x: at, y, "text-anchor": anchor, ...(name && { class: name }) }), {
        textContent: words,
      }),
    );
  for (const [words, ns] of [
    [`bound ${duration(g.bound_ns)}`, g.bound_ns],
    [`recorded ${duration(g.recorded_ns)}`, g.recorded_ns],
  ]) {
    svg.append(
      svgOf("line", { x1: x(ns), x2: x(ns), y1: middle - 16, y2: middle + 8, stroke: INK.ink, "stroke-width": 2 }),
    );
    const near = ns === g.bound_ns && x(g.recorded_ns) - x(g.bound_ns) < 150;
    say(words, x(ns), middle - 20 - (near ? line : 0), x(ns) < 60 ? "start" : x(ns) > width - 60 ? "end" : "middle");
  }
  for (const { names, ns, row } of labels) {
    const chosen = names.includes(state.beside);
    svg.append(
      svgOf("path", {
        d: `M${x(ns)} ${middle - 9}V${middle + 14 + line * row}h4`,
        fill: "none",
        stroke: chosen ? INK.focus : INK.parts.beside,
        "stroke-width": chosen ? 3 : 1,
      }),
    );
    say(names.join(", "), x(ns) + 6, middle + 18 + line * row, "start", "soft");
  }
  return { svg, longest: width / scale };
}

// One label for the schedulers that end at about the same time; `wide` in units of the picture, its letters being 11
// high.
function bracketLabels(reached, longest) {
  const labels = [];
  for (const s of reached.sort((a, b) => a.time_ns - b.time_ns)) {
    const last = labels.at(-1);
    if (last && s.time_ns - last.ns < 0.008 * longest && last.names.join(", ").length < 40) last.names.push(s.name);
    else labels.push({ names: [s.name], ns: s.time_ns });
  }
  return labels.map((l) => ({ ...l, wide: 6.2 * l.names.join(", ").length + 10 }));
}

// From right to left each label goes below those that begin above it, so that no line to a label crosses another one.
function placeLabels(labels, x) {
  for (let k = labels.length - 1; k >= 0; k--) {
    const end = x(labels[k].ns) + labels[k].wide;
    labels[k].row =
      1 +
      Math.max(
        -1,
        ...labels
          .slice(k + 1)
          .filter((l) => x(l.ns) < end)
          .map((l) => l.row),
      );
  }
  return Math.max(0, ...labels.map((l) => l.row)) + 1;
}

function recordedSteps(g) {
  const steps = [[gapWords(), "gap", g.gap_ns, "time between launches in which nothing runs"]];
  if (g.beside_ns > 0.005 * g.recorded_ns)
    steps.push([
      "launches beside their tiles",
      "beside",
      g.beside_ns,
      "recorded time of launches that their tiles' times do not explain",
    ]);
  return [
    ...steps,
    ["waves partly full", "idle", g.idle_ns, "slot-time without a tile while launches run, each alone on the GPU"],
    ["tiles at work", "work", g.work_ns, PARTS.work_ns[2]],
  ];
}

const simulatedSteps = (s) =>
  ["gap_ns", "idle_ns", "wait_ns", "work_ns"].map((key) => [PARTS[key][1], PARTS[key][0], s[key], PARTS[key][2]]);

// A time less what is lost, down to the work. Each step begins where the one before ends.
function waterfall(name, total, steps, g, longest) {
  const rows = [row(name, [["beside", total]], 0, g, longest, { of: total })];
  let end = total;
  for (const [words, part, ns, title] of steps.slice(0, -1)) {
    if (Math.abs(ns) < 0.0005 * total) continue;
    end -= ns;
    rows.push(row(`− ${words}`, [[part, ns]], Math.max(end, 0), g, longest, { title, minus: true, of: total }));
  }
  const [words, part, work, title] = steps.at(-1);
  rows.push(row(`= ${words}`, [[part, work]], 0, g, longest, { title, of: total }));
  const over = steps.reduce((sum, s) => sum + s[2], 0) - total;
  if (over > 0.01 * total)
    rows.splice(-1, 0, [
      make("span", "minus time that counts twice"),
      make("span", g.beside_ns < 0 ? "tiles were timed in a slower run than their launches" : "launches overlapped", {
        class: "soft",
      }),
      make("span", duration(over), { class: "number" }),
      make("span", ""),
    ]);
  return rows.flat();
}

function row(name, pieces, from, g, longest, { of, title = "", minus = false }) {
  const ns = pieces.reduce((sum, p) => sum + p[1], 0);
  const share = of > 0 ? `${Math.round((100 * ns) / of)}%` : "";
  return [
    make("span", name, { title }),
    make("span", [stackedBar(pieces, from, [g.bound_ns], longest)], { title }),
    make("span", (minus ? "−" : "") + duration(ns), { class: "number" }),
    make("span", share, { class: "number soft" }),
  ];
}

function recordedRow(g, longest, against) {
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
            ["beside", g.recorded_ns - idle],
          ],
          0,
          [g.bound_ns],
          longest,
        ),
      ],
      { title },
    ),
    make("span", duration(g.recorded_ns), { class: "number" }),
    make("span", signedShare(g.recorded_ns / against - 1), { class: "number soft" }),
  ];
}

// Between measured launches the GPU may have waited for the host; a model knows of launch gaps alone.
const gapWords = () => (doc.summary.timing.measured > 0 ? "idle between launches" : "launch gaps");

function scheduleRow(s, g, longest, against) {
  const pieces = Object.entries(PARTS)
    .filter(([key]) => s[key] > 0)
    .map(([key, [part]]) => [part, s[key]]);
  const told = [
    ABOUT[s.name] ?? "",
    ...Object.entries(PARTS)
      .filter(([key]) => s[key] > 0)
      .map(([key, [, , words]]) => `${duration(s[key])}: ${words}`),
  ]
    .filter(Boolean)
    .join("\n");
  const button = make("button", s.name, {
    type: "button",
    title: ABOUT[s.name] ?? s.name,
    "aria-pressed": String(state.beside === s.name),
  });
  button.disabled = !hasLanes(s);
  button.addEventListener("click", () => chooseBeside(state.beside === s.name ? "" : s.name));
  if (s.time_ns === null)
    return [
      button,
      make("span", `deadlock: ${s.deadlock}`, { title: s.deadlock }),
      make("span", "∞", { class: "number" }),
      make("span", ""),
    ];
  return [
    button,
    make("span", [stackedBar(pieces, 0, [g.bound_ns], longest)], { title: told }),
    make("span", duration(s.time_ns), { class: "number" }),
    make("span", signedShare(s.time_ns / against - 1), { class: "number soft" }),
  ];
}

export const signedShare = (share) =>
  Math.abs(share) < 0.005 ? "±0%" : `${share < 0 ? "−" : "+"}${Math.round(100 * Math.abs(share))}%`;

function boundRows(g, longest, against) {
  const rows = [
    [`bound: ${g.binding}`, g.bound_ns, "no schedule is faster, under the assumptions that `tileprof report` prints"],
  ];
  if (g.ready_ns > g.bound_ns * 1.001)
    rows.push([
      "bound, ready-gated",
      g.ready_ns,
      "no schedule that dispatches a tile only when its parents have ended is faster",
    ]);
  return rows.flatMap(([name, ns, title]) => [
    make("span", name, { title }),
    make("span", [stackedBar([[INK.muted, ns]], 0, [g.bound_ns], longest)], { title }),
    make("span", `≥ ${duration(ns)}`, { class: "number" }),
    make("span", signedShare(ns / against - 1), { class: "number soft" }),
  ]);
}

// The policy's launches alone, on a scale of their own.
function policyRows(p) {
  const words = `${p.name}: its launches alone, predicted${p.sound ? "" : " (but the policy is unsound)"}`;
  const rows = [
    ["one after the other", "beside", p.stream_ns],
    ["under the policy", "work", p.policy_ns],
  ].flatMap(([name, part, ns]) => [
    make("span", name),
    make("span", [stackedBar([[part, ns]], 0, [], Math.max(p.stream_ns, p.policy_ns))]),
    make("span", duration(ns), { class: "number" }),
    make("span", signedShare(ns / p.stream_ns - 1), { class: "number soft" }),
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

export function chooseBeside(name) {
  served.problem = "";
  state.beside = name;
  changed();
}
