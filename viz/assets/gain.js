// View 4: what there is to gain. The recorded time step by step, and every scheduler on the same scale.

const PARTS = {
  work_ns: ["work", "tiles at work", "the tiles' time, were all slots always full"], wait_ns: ["wait", "tiles that wait", "slots held by tiles that wait or signal"],
  idle_ns: ["idle", "empty slots", "slots empty while some tile runs: partial waves, uneven tiles"], gap_ns: ["gap", "no tile runs", "gaps between launches"],
};

const ABOUT = {
  stream: "one launch after the other, each with a launch gap", graph: "the launches of each stream in one CUDA graph: shorter gaps",
  pdl: "programmatic dependent launch: the next launch's tiles are on the SMs early and wait for the whole launch before",
  streams: "independent launches in several streams", "acs-sw": "ACS in software: a window of launches, independent ones together",
  "acs-hw": "ACS in hardware: a window of launches, independent ones together", cusync: "cuSync: tiles wait for tiles through semaphores",
  dataflow: "each tile is dispatched when the tiles it needs have ended", list: "greedy, free launches: a tile is dispatched when its parents have ended",
  persistent: "one kernel for the whole program, its tiles handed out on the GPU", ccks: "CCKS: a persistent kernel whose tiles the CPU hands out",
  blockmaestro: "BlockMaestro: kernels launched early, their blocks held back by a hardware scheduler",
  wireframe: "Wireframe: a task graph in hardware with room for some of its nodes", "dataflow-bloom": "dataflow, its dependencies kept in a Bloom filter",
};

function svgOf(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// One bar: `pieces` are [part, ns] from `from` on; `marks` are times at which a line crosses it. The scale is `longest` ns.
function stackedBar(pieces, from, marks, longest) {
  const svg = svgOf("svg", { viewBox: "0 0 1000 17", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = from;
  for (const [part, ns] of pieces) {
    svg.append(svgOf("rect", { x: (1000 * x) / longest, y: 2, width: Math.max((1000 * ns) / longest, 0), height: 13, fill: INK.parts[part] ?? part }));
    x += ns;
  }
  for (const ns of marks) svg.append(svgOf("line", { x1: (1000 * ns) / longest, x2: (1000 * ns) / longest, y1: 0, y2: 17, stroke: INK.ink, "stroke-width": 1.5, "vector-effect": "non-scaling-stroke", "stroke-dasharray": "3 2" }));
  return svg;
}

function showGain() {
  if (state.tab !== "gain") return;
  const box = document.getElementById("gains");
  const says = document.getElementById("gain-says");
  if (!("recorded_ns" in doc.gain) || !(doc.gain.recorded_ns > 0)) {
    says.textContent = "";
    return box.replaceChildren(make("p", launchCount ? "This page was made without bounds." : "This trace holds no launches: there is nothing to gain."));
  }
  const g = doc.gain;
  says.textContent = `bound ${duration(g.bound_ns)} (${g.binding})${g.listed_ns ? ` · list schedule ${duration(g.listed_ns)}` : ""} · recorded ${duration(g.recorded_ns)}`;
  const ran = doc.schedules.filter((s) => s.time_ns !== null);
  const longest = Math.max(g.recorded_ns, ...ran.map((s) => s.time_ns));
  box.replaceChildren(
    gainKey(), make("h3", "Where the recorded time goes"), make("div", waterfall(g, longest), { class: "rows", id: "waterfall" }),
    make("h3", doc.schedules.length ? "Schedulers, simulated; choose one to see it in the timeline" : "Bounds"),
    make("div", [...doc.schedules.flatMap((s) => scheduleRow(s, g, longest)), ...boundRows(g, longest)], { class: "rows", id: "schedulers" }),
    ...(doc.policy ? policyRows(doc.policy) : []),
    ...(served.runner ? [make("h3", "Another scheduler, or other options"), served.runner()] : []),
  );
}

// Recorded time less what is lost, down to the work and the bound. Each step begins where the one before ends.
function waterfall(g, longest) {
  const steps = [["launch gaps", "gap", g.gap_ns, "time between launches in which nothing runs"]];
  if (g.beside_ns > 0.005 * g.recorded_ns) steps.push(["launches beside their tiles", "beside", g.beside_ns, "recorded time of launches that their tiles' times do not explain"]);
  steps.push(["waves partly full", "idle", g.idle_ns, "slot-time without a tile while launches run, each alone on the GPU"]);
  const rows = [row("recorded", [["beside", g.recorded_ns]], 0, g, longest, { title: "from the first launch's begin to the last one's end" })];
  let end = g.recorded_ns;
  for (const [name, part, ns, title] of steps) {
    end -= ns;
    rows.push(row("− " + name, [[part, ns]], Math.max(end, 0), g, longest, { title, minus: true }));
  }
  rows.push(row("= tiles at work", [["work", g.work_ns]], 0, g, longest, { title: PARTS.work_ns[2] }));
  const over = steps.reduce((sum, s) => sum + s[2], g.work_ns) - g.recorded_ns;
  if (over > 0.01 * g.recorded_ns) rows.splice(-1, 0, [make("span", "less what counts twice"), make("span", g.beside_ns < 0 ? "tiles were timed in a slower run than their launches" : "launches overlapped", { class: "soft" }), make("span", duration(over), { class: "number" }), make("span", "")]);
  return rows.flat();
}

function row(name, pieces, from, g, longest, { title = "", minus = false } = {}) {
  const ns = pieces.reduce((sum, p) => sum + p[1], 0);
  const share = g.recorded_ns > 0 ? Math.round((100 * ns) / g.recorded_ns) + "%" : "";
  return [
    make("span", name, { title }), make("span", [stackedBar(pieces, from, [g.bound_ns], longest)], { title }),
    make("span", (minus ? "−" : "") + duration(ns), { class: "number" }), make("span", share, { class: "number soft" }),
  ];
}

function scheduleRow(s, g, longest) {
  const pieces = Object.entries(PARTS).filter(([key]) => s[key] > 0).map(([key, [part]]) => [part, s[key]]);
  const told = [ABOUT[s.name] ?? "", ...Object.entries(PARTS).filter(([key]) => s[key] > 0).map(([key, [, , words]]) => `${duration(s[key])}: ${words}`)].filter(Boolean).join("\n");
  const button = make("button", s.name, { type: "button", title: ABOUT[s.name] ?? s.name, "aria-pressed": String(state.beside === s.name) });
  button.disabled = !hasLanes(s);
  button.addEventListener("click", () => chooseBeside(state.beside === s.name ? "" : s.name));
  if (s.time_ns === null) return [button, make("span", `deadlock: ${s.deadlock}`, { title: s.deadlock }), make("span", "∞", { class: "number" }), make("span", "")];
  const saved = 1 - s.time_ns / g.recorded_ns;
  return [
    button, make("span", [stackedBar(pieces, 0, [g.bound_ns], longest)], { title: told }),
    make("span", duration(s.time_ns), { class: "number" }), make("span", signedShare(-saved), { class: "number soft", title: "against recorded" }),
  ];
}

const signedShare = (share) => (Math.abs(share) < 0.005 ? "±0%" : `${share < 0 ? "−" : "+"}${Math.round(100 * Math.abs(share))}%`);

function boundRows(g, longest) {
  const rows = [["bound: " + g.binding, g.bound_ns, "no schedule is faster, under the assumptions that `tileprof report` prints"]];
  if (g.ready_ns > g.bound_ns * 1.001) rows.push(["bound, ready-gated", g.ready_ns, "no schedule that dispatches a tile only when its parents have ended is faster"]);
  return rows.flatMap(([name, ns, title]) => [
    make("span", name, { title }), make("span", [stackedBar([[INK.muted, ns]], 0, [g.bound_ns], longest)], { title }),
    make("span", "≥ " + duration(ns), { class: "number" }), make("span", signedShare(ns / g.recorded_ns - 1), { class: "number soft" }),
  ]);
}

// The policy's launches alone, on a scale of their own.
function policyRows(p) {
  const words = `${p.name}: its launches alone, predicted${p.sound ? "" : " (but the policy is unsound)"}`;
  const rows = [["one after the other", "beside", p.stream_ns], ["under the policy", "work", p.policy_ns]].flatMap(([name, part, ns]) => [
    make("span", name), make("span", [stackedBar([[part, ns]], 0, [], Math.max(p.stream_ns, p.policy_ns))]),
    make("span", duration(ns), { class: "number" }), make("span", signedShare(ns / p.stream_ns - 1), { class: "number soft" }),
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

function chooseBeside(name) {
  state.beside = name;
  changed();
}
