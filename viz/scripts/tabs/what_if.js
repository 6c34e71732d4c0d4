// The view What if: the GPU had another size, or a scheduler other options. By slider: a file has the runs that were
// worked out beforehand, which move one slider at a time; a served page runs any combination.

import { INK, make, niceStep } from "../canvas.js";
import { doc, duration, launchCount, number, plural, served, short, tickTime, timed } from "../data.js";
import { ABOUT, info } from "../glossary.js";
import { state, writeHash } from "../state.js";
import { signedShare, stackedBar, svgOf } from "./gain.js";

export const whatIf = { scheduler: "", options: {}, sms: doc.summary.sms, occupancy: 0, moved: "sms", problem: "" };
const IN_SIZES = { stream: "stream_ns", graph: "graph_ns", list: "list_ns" };
const LINES = {
  stream: ["stream order", 1, []],
  graph: ["in a CUDA graph", 1, [7, 3]],
  list: ["list schedule, free launches", 2, [2, 3]],
}; // words, place among the inks of schedulers, dashes
const UNKNOWN_BLOCKS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 32];

// Every run that is known, in ns (null: a deadlock), by "name:key=value,…@SMs,blocks".
export const ran = new Map();
const optionWords = (options) =>
  Object.entries(options)
    .map(([key, value]) => `${key}=${value}`)
    .join(",");
export const runKey = ({ scheduler, options, sms, occupancy }) =>
  `${scheduler}${optionWords(options) && ":"}${optionWords(options)}@${sms},${occupancy}`;
for (const s of doc.schedules) ran.set(`${s.name}@${doc.summary.sms},0`, s.time_ns);
for (const [name, key, value, sms, occupancy, ns] of doc.variants)
  ran.set(runKey({ scheduler: name, options: key ? { [key]: value } : {}, sms, occupancy }), ns);
function learnSize(s) {
  for (const [name, column] of Object.entries(IN_SIZES)) {
    if (s[column] !== null) ran.set(`${name}@${s.sms},${s.occupancy}`, s[column]);
  }
}
for (const s of doc.sizes) learnSize(s);

const knobsOf = (name) =>
  (Object.hasOwn(doc.knobs, name ?? "") ? doc.knobs[name] : []).map(([key, meaning, given, values]) => ({
    key,
    meaning,
    given,
    values,
  }));
const runnable = () =>
  Object.keys(doc.knobs).filter((name) => served.variant || ran.has(`${name}@${doc.summary.sms},0`));

// The sliders: SMs, resident blocks, and an option each. `values` are those that a page can answer for.
function slidersNow() {
  const sms = [...new Set([doc.summary.sms, ...[...ran.keys()].map((key) => Number(key.match(/@(\d+),/)[1]))])].sort(
    (a, b) => a - b,
  );
  const sliders = [
    {
      key: "sms",
      label: "SMs",
      values: served.variant ? Array.from({ length: 2 * doc.summary.sms }, (_, i) => i + 1) : sms,
      given: doc.summary.sms,
      words: String,
    },
    {
      key: "occupancy",
      label: "blocks per SM",
      meaning: "resident blocks per SM",
      values: UNKNOWN_BLOCKS,
      given: 0,
      words: (n) => (n ? plural(n, "block") : "as recorded"),
    },
    ...knobsOf(whatIf.scheduler).map((k) => ({
      ...k,
      label: k.key.replace(/_ns$/, "").replaceAll("_", " "),
      words: (v) => knobWords(k.key, v),
    })),
  ];
  return sliders.map((s) => ({
    ...s,
    values: s.values.filter((v) => served.variant || v === s.given || ran.has(runKey(moved(s, v, recordedSetting())))),
  }));
}

const knobWords = (key, value) =>
  value === null
    ? "the device's"
    : key.endsWith("_ns")
      ? duration(value)
      : number(value) === String(value) || Number.isInteger(value)
        ? number(value)
        : short(value);
const recordedSetting = () => ({ scheduler: whatIf.scheduler, options: {}, sms: doc.summary.sms, occupancy: 0 });

// A setting with one slider elsewhere; an option at its default is not named.
function moved({ key, given }, value, setting) {
  if (key in { sms: 0, occupancy: 0 }) return { ...setting, [key]: value };
  const options = { ...setting.options };
  delete options[key];
  return {
    ...setting,
    options: value === given ? options : Object.fromEntries(Object.entries({ ...options, [key]: value }).sort()),
  };
}

const settingOf = ({ key, given }) => (key in { sms: 0, occupancy: 0 } ? whatIf[key] : (whatIf.options[key] ?? given));

function moveSlider(slider, value) {
  const wanted = moved(slider, value, whatIf);
  const alone = moved(slider, value, recordedSetting());
  Object.assign(whatIf, served.variant || ran.has(runKey(wanted)) ? wanted : alone, { moved: slider.key, problem: "" });
  writeHash();
  showSizes();
}

// One question at a time: where the sliders went on meanwhile, the next one asks for where they are now.
let asking = false;
async function askForRun() {
  if (asking) return;
  asking = true;
  const wanted = () => [runKey(whatIf), runKey(recordedSetting())].find((key) => !ran.has(key));
  try {
    for (let key = wanted(); key && !whatIf.problem; key = wanted()) {
      try {
        const [answer, size] = await Promise.all([served.variant(key), served.size(key.split("@")[1])]);
        learnSize(size);
        ran.set(key, answer.time_ns);
      } catch (error) {
        whatIf.problem = error.message;
      }
      showSizes();
    }
  } finally {
    asking = false;
  }
}

export function showSizes() {
  if (state.tab !== "sizes") return;
  const box = document.getElementById("what-if");
  const says = document.getElementById("sizes-says");
  const names = runnable();
  if (!timed || !names.length) {
    says.textContent = "";
    return box.replaceChildren(
      make(
        "p",
        timed
          ? "This page holds no simulations: it was made with --quick, or the program is too large for one. " +
              "`tileprof view --serve` simulates whatever is asked for."
          : `This trace holds no ${launchCount ? "times" : "launches"}.`,
      ),
    );
  }
  if (!names.includes(whatIf.scheduler))
    Object.assign(whatIf, { scheduler: names.includes("cusync") ? "cusync" : names[0], options: {} });
  const sliders = slidersNow().filter((s) => s.values.length > 1);
  if (!sliders.some((s) => s.key === whatIf.moved)) whatIf.moved = sliders[0]?.key ?? "";
  says.textContent = served.variant
    ? "tile times as recorded, whatever runs beside them"
    : sliders.length
      ? "in a file, SMs and blocks per SM vary together and options one at a time; --serve combines them all"
      : "too large a program for sliders in a file; --serve has them";
  // A slider that is being dragged must stay the element that it is.
  const kind = [whatIf.scheduler, ...sliders.map((s) => s.key)].join();
  if (box.dataset.kind !== kind) {
    box.dataset.kind = kind;
    box.replaceChildren(
      schedulerChoice(names),
      make("div", sliders.flatMap(sliderOf), { class: "sliders" }),
      make("div", "", { id: "what-comes" }),
    );
  }
  for (const slider of sliders) {
    const [input, now] = [document.getElementById(`slide-${slider.key}`), settingOf(slider)];
    input.value = slider.values.indexOf(now);
    input.setAttribute("aria-valuetext", slider.words(now));
    input.nextElementSibling.textContent = slider.words(now);
  }
  document.getElementById("as-recorded").disabled = runKey(whatIf) === runKey(recordedSetting());
  const show = box.querySelector("form button");
  if (show) show.disabled = whatIf.sms !== doc.summary.sms || whatIf.occupancy !== 0;
  const plotted = sliders.find((s) => s.key === whatIf.moved);
  document.getElementById("what-comes").replaceChildren(readout(), ...(plotted ? [settingPlot(plotted)] : []));
  if (served.variant) askForRun();
}

function schedulerChoice(names) {
  const choice = make(
    "select",
    names.map((name) => make("option", name, { value: name })),
    { id: "try" },
  );
  choice.value = whatIf.scheduler;
  choice.addEventListener("change", () => {
    Object.assign(whatIf, { ...recordedSetting(), scheduler: choice.value, problem: "" });
    writeHash();
    showSizes();
    document.getElementById("try").focus();
  });
  const parts = [
    make("label", [document.createTextNode("scheduler "), choice]),
    info("options"),
    make("span", ABOUT[whatIf.scheduler] ?? "", { class: "soft" }),
  ];
  const back = make("button", "As recorded", {
    type: "button",
    id: "as-recorded",
    title: "The recorded GPU, and the scheduler's own options",
  });
  back.addEventListener("click", () => {
    Object.assign(whatIf, recordedSetting(), { problem: "" });
    writeHash();
    showSizes();
  });
  parts.push(back);
  if (served.show) parts.push(served.show());
  return make("div", parts, { class: "line" });
}

function sliderOf(slider) {
  const { key, label, meaning, values } = slider;
  const title = meaning ? { title: meaning } : {};
  const input = make("input", "", {
    type: "range",
    min: 0,
    max: values.length - 1,
    step: 1,
    id: `slide-${key}`,
    ...title,
  });
  input.addEventListener("input", () => moveSlider(slider, values[input.value]));
  return [
    make("label", label, { for: `slide-${key}`, ...title }),
    input,
    make("output", "", { for: `slide-${key}`, ...title }),
  ];
}

// From the address bar, "name:key=value,…@SMs,blocks"; what is not known here changes nothing.
export function readSetting(words) {
  const [, name, options, sms, occupancy] = words.match(/^([\w-]+)(?::([^@]*))?@(\d{1,5}),(\d{1,5})$/) ?? [];
  const keys = knobsOf(name).map((k) => k.key);
  const given = (options ?? "")
    .split(",")
    .filter(Boolean)
    .map((o) => o.split("="));
  if (
    !Object.hasOwn(doc.knobs, name ?? "") ||
    !given.every(([key, value]) => keys.includes(key) && Number.isFinite(Number(value)))
  )
    return;
  const setting = {
    scheduler: name,
    options: Object.fromEntries(given.map(([key, value]) => [key, Number(value)])),
    sms: Number(sms),
    occupancy: Number(occupancy),
  };
  if (!ran.has(runKey(setting)) && !served.variant) return;
  Object.assign(whatIf, setting, { problem: "" });
}

export const settingWords = () =>
  whatIf.scheduler && (state.tab === "sizes" || runKey(whatIf) !== runKey(recordedSetting())) ? runKey(whatIf) : "";

// Times at the chosen setting, each against the same scheduler on the recorded GPU with its own options.
function readout() {
  const name = whatIf.scheduler;
  const at = { sms: whatIf.sms, occupancy: whatIf.occupancy, options: {} };
  const others = Object.keys(LINES).filter(
    (other) => other !== name && Number.isFinite(ran.get(runKey({ ...at, scheduler: other }))),
  );
  const rows = [
    [name, runKey(whatIf), `${name}@${doc.summary.sms},0`, INK.schedulers[0]],
    ...others.map((other) => [
      LINES[other][0],
      runKey({ ...at, scheduler: other }),
      `${other}@${doc.summary.sms},0`,
      INK.schedulers[LINES[other][1]],
    ]),
  ];
  const longest = Math.max(...rows.flatMap(([, key, base]) => [ran.get(key) ?? 0, ran.get(base) ?? 0]), 1);
  return make("div", [
    make(
      "div",
      rows.flatMap(([label, key, base, colour]) => timeRow(label, ran.get(key), ran.get(base), colour, longest)),
      { class: "rows", id: "size-rows" },
    ),
    make("p", "% and ┆: against the same scheduler with its own options on the recorded GPU", { class: "caption" }),
    ...(whatIf.problem ? [make("p", whatIf.problem, { class: "caption", role: "status" })] : []),
  ]);
}

function timeRow(label, ns, base, colour, longest) {
  if (!Number.isFinite(ns)) {
    const words = ns === null ? "deadlock" : whatIf.problem || "…";
    return [
      make("span", label),
      make("span", words, { title: words, role: "status" }),
      make("span", ns === null ? "∞" : "", { class: "number" }),
      make("span", ""),
    ];
  }
  return [
    make("span", label),
    make("span", [stackedBar([[colour, ns]], 0, Number.isFinite(base) ? [base] : [], longest)], {
      title: `┆ as recorded: ${Number.isFinite(base) ? duration(base) : "not known"}`,
    }),
    make("span", duration(ns), { class: "number" }),
    make("span", Number.isFinite(base) ? signedShare(ns / base - 1) : "", {
      class: "number soft",
      title: "against the recorded GPU and the scheduler's own options",
    }),
  ];
}

// Time over the slider that was moved last. SMs stand to scale, the values of an option at equal distances.
function settingPlot(slider) {
  const lines = {
    ...(slider.key === "sms" || slider.key === "occupancy" ? LINES : {}),
    [whatIf.scheduler]: [whatIf.scheduler, 0, []],
  };
  const timeAt = (name, value) =>
    ran.get(
      runKey(
        name === whatIf.scheduler
          ? moved(slider, value, whatIf)
          : { ...moved(slider, value, { ...whatIf, options: {} }), scheduler: name },
      ),
    );
  const curves = Object.entries(lines)
    .map(([name, look]) => [
      look,
      slider.values.map((value) => [value, timeAt(name, value)]).filter(([, ns]) => Number.isFinite(ns)),
    ])
    .filter(([, points]) => points.length);
  const [left, right, top, bottom, width, height] = [56, 700, 10, 130, 720, 160];
  const most = Math.max(...curves.flatMap(([, points]) => points.map((p) => p[1])), 1) * 1.05;
  const scaled =
    slider.key === "sms"
      ? (v) => (v - slider.values[0]) / Math.max(slider.values.at(-1) - slider.values[0], 1)
      : (v) => slider.values.indexOf(v) / Math.max(slider.values.length - 1, 1);
  const x = (v) => left + 14 + (right - left - 28) * scaled(v);
  const y = (ns) => bottom - ((bottom - top) * ns) / most;
  const svg = svgOf("svg", {
    class: "plot",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `Time over ${slider.label}`,
  });
  const say = (words, at, to, anchor) =>
    svg.append(Object.assign(svgOf("text", { x: at, y: to, "text-anchor": anchor }), { textContent: words }));
  const step = niceStep(most / 4);
  for (let ns = 0; ns <= most; ns += step) {
    svg.append(svgOf("line", { x1: left, x2: right, y1: y(ns), y2: y(ns), stroke: INK.line }));
    say(tickTime(ns, step, most), left - 6, y(ns) + 4, "end");
  }
  const ticks =
    slider.values.length > 12
      ? slider.values.filter((v) => v % (Math.ceil(slider.values.length / 80) * 10) === 0)
      : slider.values;
  for (const v of ticks) say(slider.words(v), x(v), bottom + 15, "middle");
  say(slider.meaning ?? slider.label, right, bottom + 29, "end");
  const now = settingOf(slider);
  svg.append(svgOf("line", { x1: x(now), x2: x(now), y1: top, y2: bottom, stroke: INK.focus }));
  for (const [[, colour, dash], points] of curves) {
    svg.append(
      svgOf("polyline", {
        points: points.map(([v, ns]) => `${x(v)},${y(ns)}`).join(" "),
        fill: "none",
        stroke: INK.schedulers[colour],
        "stroke-width": 2,
        "stroke-dasharray": dash.join(" "),
      }),
    );
    for (const [v, ns] of points)
      svg.append(svgOf("circle", { cx: x(v), cy: y(ns), r: v === now ? 4.5 : 2.5, fill: INK.schedulers[colour] }));
  }
  return make("div", [
    svg,
    make(
      "div",
      curves.map(([look]) => lineMark(...look)),
      { class: "key" },
    ),
  ]);
}

function lineMark(name, colour, dash) {
  const svg = svgOf("svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" });
  svg.append(
    svgOf("line", {
      x1: 1,
      x2: 23,
      y1: 4,
      y2: 4,
      stroke: INK.schedulers[colour],
      "stroke-width": 3,
      "stroke-dasharray": dash.join(" "),
    }),
  );
  return make("span", [svg, document.createTextNode(name)]);
}
