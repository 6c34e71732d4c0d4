// The header, the keyboard, and the first drawing.

import { INK, icon, make, setTheme, showTip } from "./canvas.js";
import {
  compact,
  doc,
  duration,
  hasLanes,
  laneOf,
  laneTables,
  launchCount,
  launches,
  links,
  number,
  pairCount,
  pairs,
  plural,
  timed,
} from "./data.js";
import { reveal } from "./fold.js";
import { allWords, info, showWords } from "./glossary.js";
import { serve } from "./server_requests.js";
import { changed, findLaunches, found, readHash, select, state, TABS, watch } from "./state.js";
import { keep, kept, showAdvice, toggleAdvice } from "./tabs/advice.js";
import { chooseBeside, showGain } from "./tabs/gain.js";
import {
  buildLegend,
  describeLaunch,
  drawing,
  graphView,
  heaviestPair,
  nodeFor,
  rebuildGraph,
  showNode,
  toggleGroup,
  walkGraph,
} from "./tabs/launches.js";
import { mapOf } from "./tabs/minimap.js";
import { rankPairs } from "./tabs/pair_ranking.js";
import { describePair, matrix, matrixView, showMatrix } from "./tabs/pairs.js";
import { fillBeside, simulated } from "./tabs/simulated_lanes.js";
import { describeTensor, picture, showTensor, tensorView } from "./tabs/tensor.js";
import { chain, chainNow, nodeY, showTiles, tilesView } from "./tabs/tile_graph.js";
import { laneFlow, lanesView, setTime, showLanes, simulatedRow, startOf, stepTime, TENTH_NS } from "./tabs/timeline.js";
import { overviewRows, showKernelLegend } from "./tabs/timeline_overview.js";
import { ran, showSizes, whatIf } from "./tabs/what_if.js";

export const panels = { graph: graphView, matrix: matrixView, tiles: tilesView, tensor: tensorView, lanes: lanesView };
let active = "graph";

function showSummary() {
  const s = doc.summary;
  document.getElementById("command").textContent = s.command || "A trace";
  const modelled = s.timing.modelled > 0;
  const kind = modelled && s.timing.measured > 0 ? "partly modelled" : modelled ? "modelled" : "measured";
  const fact = (label, value, mark) =>
    make("span", [make("b", value), document.createTextNode(` ${label}`)], mark ? { class: "mark" } : {});
  const facts = [make("span", [make("b", s.device), document.createTextNode(` · ${s.sms} SMs`)])];
  if (timed) facts.push(fact(kind, duration(s.recorded_ns ?? s.span_ns)));
  const counts = { ...s };
  if (s.pairs === pairCount) {
    // what memory reuse adds is known where no pair is left out, and is not counted
    counts.pairs -= pairs.reuse_only.reduce((n, only) => n + only, 0);
    counts.edges -= links.edges.reduce((n, edges, i) => n + (links.reuse[i] ? edges : 0), 0);
  }
  for (const [name, word] of [
    ["launches", "launch"],
    ["tiles", "tile"],
    ["pairs", "pair"],
    ["edges", "edge"],
  ])
    facts.push(fact(counts[name] === 1 ? word : name, compact(counts[name])));
  for (const name of ["inferred", "conservative"])
    if (s.coverage[name]) facts.push(fact(name, number(s.coverage[name]), name === "conservative"));
  if (!s.coverage.inferred && !s.coverage.conservative && s.launches && s.accesses)
    facts.push(fact("accesses", "exact"));
  if (s.accesses) facts.push(info("accesses"));
  if (doc.policy) facts.push(verdict(doc.policy));
  document.getElementById("facts").replaceChildren(...facts);
  showNotes(s);
}

function verdict(p) {
  if (p.refused)
    return make("span", [document.createTextNode(`${p.name}: `), make("b", "not of this trace")], {
      class: "bad",
      id: "verdict",
      title: p.refused,
    });
  const words = p.sound
    ? "sound"
    : p.missing
      ? `UNSOUND: ${number(p.missing)} of ${number(p.needed)} dependencies missing`
      : "UNSOUND";
  const excess = p.excess ? `, ${number(p.excess)} tiles awaited in excess` : "";
  const title = `${plural(p.needed, "dependency", "dependencies")} between its launches, ${plural(p.waits, "wait")}`;
  return make("span", [document.createTextNode(`${p.name}: `), make("b", words), document.createTextNode(excess)], {
    class: p.sound ? "good" : "bad",
    id: "verdict",
    title,
  });
}

// What makes the picture wrong or partial is a warning; what merely explains it waits behind a button.
function showNotes(s) {
  const warnings = [];
  if (!s.complete) warnings.push("Partial trace: the recording ended early, and the page shows what was recorded.");
  if (!s.launches) warnings.push("The trace holds no launches: there is nothing to draw.");
  else if (!s.accesses) warnings.push("The trace holds no accesses: dependencies are unknown, not absent.");
  if (s.launches && !timed) warnings.push("The trace holds no times: dependencies are right, but gains are unknown.");
  if (s.coverage.conservative)
    warnings.push(
      `${plural(s.coverage.conservative, "launch is", "launches are")} conservative: ` +
        "what they really touch is unknown, so they depend on more than they need.",
    );
  if (doc.policy?.refused) warnings.push(`${doc.policy.name} is not of this trace: ${doc.policy.refused}`);
  if (doc.policy && !doc.policy.sound)
    warnings.push(...doc.policy.reasons.map((reason) => `The policy is unsound: ${reason}.`));
  const notes = [...doc.notes];
  if (s.granule > 1)
    notes.push(`Accesses were recorded in granules of ${s.granule} bytes: dependencies are a superset.`);
  (s.complete ? notes : warnings).push(...s.reasons);
  const box = document.getElementById("notes");
  box.hidden = !warnings.length;
  if (warnings.length === 1) box.replaceChildren(make("p", warnings[0]));
  else if (warnings.length) {
    const list = make(
      "ul",
      warnings.slice(1).map((n) => make("li", n)),
    );
    box.replaceChildren(make("details", [make("summary", `${warnings[0]} (${warnings.length - 1} more)`), list]));
  }
  const button = document.getElementById("said");
  button.hidden = !notes.length;
  button.textContent = plural(notes.length, "note");
  button.addEventListener("click", () =>
    showWords(
      "Notes",
      make(
        "ul",
        notes.map((n) => make("li", n)),
      ),
    ),
  );
}

function addButtons() {
  for (const [name, view] of Object.entries(panels)) {
    const panel = document.getElementById(name);
    const button = (drawn, title, action, id = "") => {
      const made = make("button", [icon(drawn)], { type: "button", title, "aria-label": title, ...(id && { id }) });
      made.addEventListener("click", action);
      return made;
    };
    if (name === "matrix")
      panel
        .querySelector(".buttons")
        .append(
          button(
            "M3 3l8 8M11 3l-8 8",
            "Back to the list of pairs (Esc)",
            () => select({ launch: state.launch }),
            "back",
          ),
        );
    panel.querySelector(".buttons").append(
      button("M3 7h8", "Zoom out (-)", () => view.zoom(1 / 1.5)),
      button("M3 7h8M7 3v8", "Zoom in (+)", () => view.zoom(1.5)),
      button("M2 7h10M4 5L2 7l2 2M10 5l2 2-2 2", "Show all (0)", () => view.fit()),
      button("M2 5V2h3M9 2h3v3M12 9v3H9M5 12H2V9", "Show only this view (f)", () => showOnly(name)),
    );
    panel.addEventListener("pointerdown", () => (active = name));
    panel.addEventListener("focusin", () => (active = name));
  }
  for (const name of ["gain", "sizes"]) {
    const made = make("button", [icon("M2 5V2h3M9 2h3v3M12 9v3H9M5 12H2V9")], {
      type: "button",
      title: "Show only this view (f)",
      "aria-label": "Show only this view",
    });
    made.addEventListener("click", () => showOnly(name));
    document.querySelector(`#${name} .buttons`).append(made);
    document.getElementById(name).addEventListener("pointerdown", () => (active = name));
  }
  for (const nav of document.querySelectorAll(".tabs")) {
    nav.append(
      ...Object.entries(TABS).map(([name, label]) => {
        const tab = make("button", label, { type: "button", role: "tab", "data-tab": name, "aria-controls": name });
        tab.addEventListener("click", () => showTab(name));
        tab.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          const names = Object.keys(TABS);
          showTab(names[(names.indexOf(name) + step + names.length) % names.length]);
          document.querySelector(`#${state.tab} [role="tab"][data-tab="${state.tab}"]`)?.focus();
          event.preventDefault();
          event.stopPropagation();
        });
        return tab;
      }),
    );
  }
}

function showTab(name) {
  state.tab = active = name;
  changed();
}

// The four views of the upper right take turns; the one in front is shown alone.
function showOnly(name) {
  const main = document.querySelector("main");
  const panel = name in TABS ? "work" : name;
  if (main.dataset.only === panel) delete main.dataset.only;
  else main.dataset.only = panel;
}

const KEYS = [
  ["h", "what to do first: show or hide"],
  ["w  s  a  d", "zoom in, zoom out, left, right"],
  ["Shift, drag", "in the timeline: choose a range of time; a click ends it"],
  [
    "← → ↑ ↓",
    "in the launch graph: along issue order, along the heaviest dependency; " +
      "elsewhere: move the window, or the tile cursor",
  ],
  [
    "Enter",
    "in the launch graph: show the heaviest pair of the selected launch; " +
      "elsewhere: a tile cursor that arrows move, Enter again selects, Esc ends",
  ],
  ["o", "open or fold the layers around the selected launch"],
  ["+  −  0", "zoom in, zoom out, show all"],
  ["/", "search; Enter goes to the next match; kernel:, op: or module: before a word searches only these names"],
  ["f", "show only this view, or all views"],
  ["1  2  3", "launches, tiles of a pair, timeline"],
  ["4  5  6  7", "tile graph, gain, what if, tensor"],
  ["b", "another scheduler beside the recorded timeline"],
  [",  .", "move the marked time back or forward; a drag along the timeline's axis does the same"],
  ["t", "dark or light"],
  ["Esc", "step back: view, tile, pair, launch, search"],
  ["wheel, drag", "zoom and move; with Shift the wheel zooms the timeline's lanes; double click shows all"],
];

function showKeys() {
  const keys = make(
    "dl",
    KEYS.flatMap(([k, v]) => [make("dt", k), make("dd", v)]),
  );
  showWords("Keys", make("div", [keys, make("h2", "Words"), allWords()]), document.getElementById("keys"));
}

// Esc undoes one thing at a time, the last made first.
function stepBack() {
  if (document.querySelector("main").dataset.only) return delete document.querySelector("main").dataset.only;
  if (state.time !== null) return setTime(null);
  if (state.tile) return select({ pair: state.pair, chain: state.chain, launch: state.launch });
  if (state.chain) return select({ pair: state.pair });
  if (state.pair) return select({ launch: null });
  if (state.launch !== null) return select({});
  search("");
}

function search(words) {
  state.search = words;
  const box = document.getElementById("search");
  if (box.value !== words) box.value = words;
  changed();
}

function nextFound() {
  const all = [...found].sort((a, b) => a - b);
  if (!all.length) return;
  select({ launch: all.find((i) => i > (state.launch ?? -1)) ?? all[0] });
}

// A tile under the keys: after Enter arrows move it and Enter selects it. `at` counts as the view does: [column, row]
// of the matrix, [column, tile] of the tile graph, [launch, tile] of the timeline.
const cursor = { view: "", at: [0, 0] };
const within = (v, count) => Math.min(Math.max(v, 0), Math.max(count - 1, 0));
const CURSORS = {
  matrix: {
    begin: () =>
      matrix.parts.length && [state.tile?.[0] === state.pair[1] ? matrix.columns.place[state.tile[1]] : 0, 0],
    move: ([x, y], right, down) => [within(x + right, matrix.consumers), within(y + down, matrix.producers)],
    point: ([x, y]) => [x + 0.5, y + 0.5],
  },
  tiles: {
    begin: () =>
      chain.parents && [
        Math.max(chain.launches.indexOf(state.tile?.[0]), 0),
        chain.launches.includes(state.tile?.[0]) ? state.tile[1] : 0,
      ],
    move([column, tile], right, down) {
      const next = within(column + right, chain.launches.length);
      return [next, within(tile + down, launches.tiles[chain.launches[next]])];
    },
    point: ([column, tile]) => [column + 0.5, nodeY(column, tile)],
  },
  lanes: {
    begin: () => timed && (state.tile ?? [state.launch ?? 0, 0]),
    move([launch, tile], right, down) {
      const next = within(launch + down, launchCount);
      return [next, within(tile + right, launches.tiles[next])];
    },
    point([launch, tile]) {
      const table = laneTables.ready(laneOf[launch]);
      const begin = startOf(launch) + (table?.sm ? (table.begin[tile] + table.life[tile] / 2) * TENTH_NS : 0);
      return [begin, table?.sm ? table.sm[tile] + (table.slot[tile] + 0.5) / table.slots : 0];
    },
  },
};
for (const name of Object.keys(CURSORS)) {
  panels[name].over = (c) => {
    if (cursor.view !== name) return;
    const [x, y] = panels[name].toScreen(...CURSORS[name].point(cursor.at));
    c.strokeStyle = INK.focus;
    c.lineWidth = 2.5;
    c.strokeRect(x - 8, y - 8, 16, 16);
  };
}

function moveCursor(right, down) {
  const [view, own] = [panels[cursor.view], CURSORS[cursor.view]];
  cursor.at = own.move(cursor.at, right, down);
  const [x, y] = view.toScreen(...own.point(cursor.at));
  const off = (v, low, high) => (v < low ? low - v : v > high ? high - v : 0);
  view.pan(off(x, view.margin.left + 20, view.width - 20), off(y, view.margin.top + 20, view.height - 20));
  const [sx, sy] = view.toScreen(...own.point(cursor.at));
  const box = view.canvas.getBoundingClientRect();
  showTip(view.hover(sx, sy), box.left + sx, box.top + sy);
}

// Whether the key was the cursor's.
function cursorKey(key, onCanvas) {
  const view = cursor.view === active && onCanvas ? panels[active] : null;
  if (view && Object.hasOwn(STEPS, key)) moveCursor(-STEPS[key][0], -STEPS[key][1]);
  else if (view && key === "Enter") view.click(...view.toScreen(...CURSORS[active].point(cursor.at)));
  else if (key === "Escape" && cursor.view) endCursor();
  else if (key === "Enter" && onCanvas && Object.hasOwn(CURSORS, active) && CURSORS[active].begin()) {
    Object.assign(cursor, { view: active, at: CURSORS[active].begin() });
    moveCursor(0, 0);
  } else return false;
  return true;
}

// The cursor ends with what it stands in: another pair, another chain.
function cursorStands() {
  if (cursor.view === "lanes") return true;
  return (
    state.tab === cursor.view &&
    (cursor.view === "matrix" ? matrix.key === state.pair?.join(",") : String(chainNow()) === String(chain.launches))
  );
}

function endCursor() {
  const view = panels[cursor.view];
  cursor.view = "";
  view?.leave();
  view?.redraw();
}

const STEPS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const ACTIONS = {
  "/": () => document.getElementById("search").select(),
  "+": () => panels[active]?.zoom(1.3),
  "=": () => panels[active]?.zoom(1.3),
  "-": () => panels[active]?.zoom(1 / 1.3),
  0: () => panels[active]?.fit(),
  f: () => showOnly(active in TABS ? state.tab : active),
  t: toggleTheme,
  h: toggleAdvice,
  w: () => panels[active]?.zoom(1.3),
  s: () => panels[active]?.zoom(1 / 1.3),
  a: () => panels[active]?.pan(60, 0),
  d: () => panels[active]?.pan(-60, 0),
  "?": showKeys,
  Escape: stepBack,
  1: () => focusPanel("graph"),
  2: () => focusPanel("matrix"),
  3: () => focusPanel("lanes"),
  4: () => focusPanel("tiles"),
  5: () => showTab("gain"),
  7: () => focusPanel("tensor"),
  6: () => showTab("sizes"),
  b: nextBeside,
  ",": () => stepTime(-1),
  ".": () => stepTime(1),
  o: () => {
    const node = state.launch !== null && nodeFor(state.launch);
    const box = node?.module ? node : node?.parent;
    if (box?.group) toggleGroup(box);
  },
};

function nextBeside() {
  const names = ["", ...doc.schedules.filter(hasLanes).map((s) => s.name)];
  chooseBeside(names[(names.indexOf(state.beside) + 1) % names.length]);
}

function focusPanel(name) {
  active = name;
  if (name in TABS) showTab(name);
  document.querySelector(`#${name} canvas`).focus();
}

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  const { key } = event;
  if (cursorKey(key, event.target instanceof HTMLCanvasElement)) return event.preventDefault();
  if (Object.hasOwn(STEPS, key)) {
    if (active === "graph") walkGraph(key);
    else panels[active]?.pan(STEPS[key][0] * 60, STEPS[key][1] * 40);
  } else if (key === "Enter" && event.target instanceof HTMLCanvasElement && state.launch !== null && !state.pair) {
    const i = [heaviestPair(state.launch, "consumer"), heaviestPair(state.launch, "producer")].find((p) => p >= 0);
    if (i !== undefined) select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  } else if (Object.hasOwn(ACTIONS, key)) ACTIONS[key]();
  else return;
  event.preventDefault();
}

function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep("theme", theme);
  setTheme(theme);
  buildLegend();
  showKernelLegend();
  matrix.key && matrix.parts.length ? describePair() : rankPairs();
  showGain();
  showSizes();
  if (picture.tensor) describeTensor();
}

let drawnAs = "";
let lastLaunch = null;

// Everything that follows from the selection; layouts are redone only when another drawing is asked for.
function refresh() {
  findLaunches();
  for (const i of [state.pair?.[0], state.pair?.[1], state.launch]) if (i !== undefined && i !== null) reveal(i);
  const as = JSON.stringify([[...state.open].sort(), state.copies]);
  if (as !== drawnAs) {
    drawnAs = as;
    rebuildGraph();
  }
  drawing.found = null;
  const count = found.size;
  document.getElementById("found").textContent = state.search ? plural(count, "match", "matches") : "";
  describeLaunch();
  if (state.launch !== null && state.launch !== lastLaunch) showNode(state.launch);
  lastLaunch = state.launch;
  graphView.redraw();
  document.querySelector("main").dataset.tab = state.tab;
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === state.tab));
    tab.tabIndex = tab.dataset.tab === state.tab ? 0 : -1;
  }
  document.getElementById("beside").value = state.beside;
  if (cursor.view && !cursorStands()) endCursor();
  showMatrix();
  showTiles();
  showTensor();
  showGain();
  showSizes();
  showLanes();
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = kept("theme");
  setTheme(chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => kept("theme") ?? setTheme(dark.matches ? "dark" : "light"));
  showSummary();
  showAdvice();
  buildLegend();
  showKernelLegend();
  addButtons();
  fillBeside();
  document.getElementById("beside").addEventListener("change", (event) => chooseBeside(event.target.value));
  const box = document.getElementById("search");
  box.addEventListener("input", () => search(box.value));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextFound();
    if (event.key === "Escape") {
      search("");
      box.blur();
    }
  });
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.addEventListener("keydown", pressKey);
  addEventListener("hashchange", () => {
    readHash();
    box.value = state.search;
    refresh();
  });
  watch(refresh);
  readHash();
  box.value = state.search;
  refresh();
  for (const view of Object.values(panels)) view.resize();
  if (state.launch !== null) showNode(state.launch);
  document.documentElement.dataset.ready = "yes"; // for programs that wait for the page: tests, screenshots
}

if (doc.served) serve();
start();
// For the console and for tests: where things are on the screen, and what is selected.
window.tileprof = {
  doc,
  laneTables,
  laneOf,
  startOf,
  state,
  select,
  views: panels,
  launches,
  pairs,
  matrix,
  chain,
  simulated,
  simulatedRow,
  ran,
  whatIf,
  flow: laneFlow,
  drawing: () => drawing,
  overviewRows,
  picture,
  map: () => mapOf(graphView, drawing),
  nodeFor,
};
