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
  persistent: "one kernel for the whole program, its tiles handed out on the GPU",
  inline: "a persistent kernel whose workers run the tiles that they make ready themselves, or spawn them", ccks: "CCKS: a persistent kernel whose tiles the CPU hands out",
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
    return box.replaceChildren(make("p", launchCount ? (timed ? "This page was made without bounds." : "This trace holds no times, so no gain can be worked out.") : "This trace holds no launches: there is nothing to gain."));
  }
  const g = doc.gain;
  says.textContent = `bound ${duration(g.bound_ns)} (${g.binding})${g.listed_ns ? ` · list schedule ${duration(g.listed_ns)}` : ""} · recorded ${duration(g.recorded_ns)}`;
  const ran = doc.schedules.filter((s) => s.time_ns !== null);
  const longest = Math.max(g.recorded_ns, ...ran.map((s) => s.time_ns));
  const chosen = ran.find((s) => s.name === state.beside);
  box.replaceChildren(
    make("div", [bracketPicture(g, ran)], { id: "bracket" }), gainKey(),
    make("h3", "Where the recorded time goes"), make("div", waterfall("recorded", g.recorded_ns, recordedSteps(g), g, longest), { class: "rows", id: "waterfall" }),
    ...(chosen ? [make("h3", `Where the time of ${chosen.name} goes`), make("div", waterfall(chosen.name, chosen.time_ns, simulatedSteps(chosen), g, longest), { class: "rows", id: "waterfall-beside" })] : []),
    make("h3", doc.schedules.length ? "Schedulers, simulated; choose one to see it in the timeline" : "Bounds"),
    make("div", [...doc.schedules.flatMap((s) => scheduleRow(s, g, longest)), ...boundRows(g, longest)], { class: "rows", id: "schedulers" }),
    ...(doc.policy && !doc.policy.refused ? policyRows(doc.policy) : []),
    ...(served.runner ? [make("h3", "Another scheduler, or other options"), served.runner()] : []),
  );
}

// One line of time: what no schedule reaches, where the best one must lie, and where each scheduler stands.
function bracketPicture(g, ran) {
  const [left, right, middle, width, height] = [8, 712, 44, 720, 104];
  const longest = Math.max(g.recorded_ns, ...ran.map((s) => s.time_ns));
  const x = (ns) => left + ((right - left) * ns) / longest;
  const svg = svgOf("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `No schedule is faster than ${duration(g.bound_ns)}; recorded were ${duration(g.recorded_ns)}` });
  const bar = (from, to, fill, title) => {
    const part = svgOf("rect", { x: x(from), y: middle - 6, width: Math.max(x(to) - x(from), 0), height: 12, fill });
    part.append(Object.assign(svgOf("title", {}), { textContent: title }));
    svg.append(part);
  };
  const best = Math.min(g.recorded_ns, g.listed_ns ?? Infinity, ...ran.map((s) => s.time_ns));
  bar(0, g.bound_ns, INK.muted, "no schedule is so fast");
  bar(g.bound_ns, best, INK.found, "the best schedule ends in here");
  bar(best, longest, INK.idle, "reached by a simulated schedule or by the recording");
  const say = (words, at, y, name) => {
    const anchor = at < 60 ? "start" : at > width - 60 ? "end" : "middle";
    svg.append(Object.assign(svgOf("text", { x: at, y, "text-anchor": anchor, ...(name && { class: name }) }), { textContent: words }));
  };
  const marks = [[`bound ${duration(g.bound_ns)}`, g.bound_ns], [`recorded ${duration(g.recorded_ns)}`, g.recorded_ns]];
  for (const [words, ns] of marks) {
    svg.append(svgOf("line", { x1: x(ns), x2: x(ns), y1: middle - 16, y2: middle + 8, stroke: INK.ink, "stroke-width": 2 }));
    say(words, x(ns), middle - 20 - (ns === g.bound_ns && x(g.recorded_ns) - x(g.bound_ns) < 150 ? 13 : 0));
  }
  const ends = [0, 0, 0, 0]; // of the words in each row below the line
  const named = [];
  const reached = g.listed_ns && !ran.some((s) => s.name === "list") ? [...ran, { name: "list", time_ns: g.listed_ns }] : [...ran];
  for (const s of reached.sort((a, b) => a.time_ns - b.time_ns)) {
    const [at, half] = [x(s.time_ns), 3.2 * s.name.length + 3];
    const row = ends.findIndex((end) => end <= Math.min(at, width - 2 * half) - half);
    svg.append(svgOf("line", { x1: at, x2: at, y1: middle - 9, y2: middle + 12 + 12 * Math.max(row, 0), stroke: s.name === state.beside ? INK.focus : INK.parts.beside, "stroke-width": s.name === state.beside ? 3 : 1 }));
    if (row < 0) continue; // its row in the list below names it
    ends[row] = at + half;
    named.push([s.name, at, middle + 22 + 12 * row, "soft"]);
  }
  for (const words of named) say(...words); // above all lines
  return svg;
}

function recordedSteps(g) {
  const steps = [["launch gaps", "gap", g.gap_ns, "time between launches in which nothing runs"]];
  if (g.beside_ns > 0.005 * g.recorded_ns) steps.push(["launches beside their tiles", "beside", g.beside_ns, "recorded time of launches that their tiles' times do not explain"]);
  return [...steps, ["waves partly full", "idle", g.idle_ns, "slot-time without a tile while launches run, each alone on the GPU"], ["tiles at work", "work", g.work_ns, PARTS.work_ns[2]]];
}

const simulatedSteps = (s) => ["gap_ns", "idle_ns", "wait_ns", "work_ns"].map((key) => [PARTS[key][1], PARTS[key][0], s[key], PARTS[key][2]]);

// A time less what is lost, down to the work. Each step begins where the one before ends.
function waterfall(name, total, steps, g, longest) {
  const rows = [row(name, [["beside", total]], 0, g, longest, { of: total })];
  let end = total;
  for (const [words, part, ns, title] of steps.slice(0, -1)) {
    if (Math.abs(ns) < 0.0005 * total) continue;
    end -= ns;
    rows.push(row("− " + words, [[part, ns]], Math.max(end, 0), g, longest, { title, minus: true, of: total }));
  }
  const [words, part, work, title] = steps.at(-1);
  rows.push(row("= " + words, [[part, work]], 0, g, longest, { title, of: total }));
  const over = steps.reduce((sum, s) => sum + s[2], 0) - total;
  if (over > 0.01 * total) rows.splice(-1, 0, [make("span", "less what counts twice"), make("span", g.beside_ns < 0 ? "tiles were timed in a slower run than their launches" : "launches overlapped", { class: "soft" }), make("span", duration(over), { class: "number" }), make("span", "")]);
  return rows.flat();
}

function row(name, pieces, from, g, longest, { of, title = "", minus = false }) {
  const ns = pieces.reduce((sum, p) => sum + p[1], 0);
  const share = of > 0 ? Math.round((100 * ns) / of) + "%" : "";
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
