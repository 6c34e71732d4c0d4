// The header, the keyboard, and the first drawing.

const panels = { graph: graphView, matrix: matrixView, lanes: lanesView };
let active = "graph";

function showSummary() {
  const s = doc.summary;
  document.getElementById("command").textContent = s.command || "A trace";
  const modelled = s.timing.modelled > 0;
  const kind = modelled && s.timing.measured > 0 ? "partly modelled" : modelled ? "modelled" : "measured";
  const fact = (label, value, mark) => make("span", [make("b", value), document.createTextNode(" " + label)], mark ? { class: "mark" } : {});
  const facts = [make("span", [make("b", s.device), document.createTextNode(` · ${s.sms} SMs`)])];
  facts.push(fact(kind, duration(s.recorded_ns ?? s.span_ns)));
  if (s.bound_ns > 0) facts.push(bracket(s));
  facts.push(fact("launches", number(s.launches)), fact("tiles", compact(s.tiles)));
  facts.push(fact("pairs", compact(s.pairs)), fact("edges", compact(s.edges)));
  for (const name of ["inferred", "conservative"]) if (s.coverage[name]) facts.push(fact(name, number(s.coverage[name]), name === "conservative"));
  if (!s.coverage.inferred && !s.coverage.conservative && s.launches) facts.push(fact("accesses", "exact"));
  document.getElementById("facts").replaceChildren(...facts);
  showNotes(s);
}

// What overlap could make of it: no schedule is faster than the bound, and a greedy one reaches the other end.
function bracket({ recorded_ns: recorded, bound_ns: bound, listed_ns: listed }) {
  const reached = listed > bound ? ` to ${duration(listed)}` : "";
  const title = "The bound, which no schedule can beat under its assumptions" + (reached ? ", and what list scheduling reaches" : "");
  return make("span", [make("b", (reached ? "" : "≥ ") + duration(bound) + reached), document.createTextNode(" with overlap "), bar(recorded, listed ?? bound, bound)], { title });
}

// Recorded time, what list scheduling reaches, and the bound, laid over each other.
function bar(...lengths) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 120 10");
  svg.setAttribute("class", "bracket");
  svg.setAttribute("aria-hidden", "true");
  for (const length of lengths) {
    const part = document.createElementNS(ns, "rect");
    part.setAttribute("width", Math.min((120 * length) / lengths[0], 120));
    part.setAttribute("height", 10);
    svg.append(part);
  }
  return svg;
}

function showNotes(s) {
  const notes = [];
  if (!s.complete) notes.push("Partial trace: recording ended early, and what is shown ends with it.");
  if (!s.launches) notes.push("The trace holds no launches: there is nothing to draw.");
  else if (!s.accesses) notes.push("The trace holds no accesses: dependencies are unknown, not absent.");
  if (s.coverage.conservative) notes.push(`${number(s.coverage.conservative)} launches are conservative: what they really touch is unknown, so they depend on more than they need.`);
  if (s.granule > 1) notes.push(`Accesses were recorded in granules of ${s.granule} bytes: dependencies are a superset.`);
  notes.push(...doc.notes, ...s.reasons);
  const box = document.getElementById("notes");
  box.hidden = !notes.length;
  if (notes.length === 1) box.replaceChildren(make("p", notes[0]));
  else if (notes.length) {
    const list = make("ul", notes.slice(1).map((n) => make("li", n)));
    box.replaceChildren(make("details", [make("summary", `${notes[0]} (${notes.length - 1} more)`), list]));
  }
}

function addButtons() {
  for (const [name, view] of Object.entries(panels)) {
    const panel = document.getElementById(name);
    const button = (drawn, title, action, id = "") => {
      const made = make("button", [icon(drawn)], { type: "button", title, "aria-label": title, ...(id && { id }) });
      made.addEventListener("click", action);
      return made;
    };
    if (name === "matrix") panel.querySelector(".buttons").append(button("M3 3l8 8M11 3l-8 8", "Back to the list of pairs (Esc)", () => select({ launch: state.launch }), "back"));
    panel.querySelector(".buttons").append(
      button("M3 7h8", "Zoom out (-)", () => view.zoom(1 / 1.5)), button("M3 7h8M7 3v8", "Zoom in (+)", () => view.zoom(1.5)),
      button("M2 7h10M4 5L2 7l2 2M10 5l2 2-2 2", "Show all (0)", () => view.fit()),
      button("M2 5V2h3M9 2h3v3M12 9v3H9M5 12H2V9", "This view alone (f)", () => showOnly(name)),
    );
    panel.addEventListener("pointerdown", () => (active = name));
    panel.addEventListener("focusin", () => (active = name));
  }
}

function showOnly(name) {
  const main = document.querySelector("main");
  if (main.dataset.only === name) delete main.dataset.only;
  else main.dataset.only = name;
}

const KEYS = [
  ["← → ↑ ↓", "in the launch graph: along issue order, along the heaviest dependency; elsewhere: move the window"],
  ["Enter", "show the heaviest pair of the selected launch"], ["o", "open or fold the layers around the selected launch"],
  ["+  −  0", "zoom in, zoom out, show all"], ["/", "search; Enter goes to the next launch found"], ["f", "this view alone, and back"],
  ["1  2  3", "launches, tiles, timeline"], ["t", "dark or light"], ["Esc", "step back: view, tile, pair, launch, search"],
  ["wheel, drag", "zoom and move; with Shift the wheel zooms the timeline's lanes; double click shows all"],
];

function showKeys() {
  const dialog = document.getElementById("keys");
  const close = make("button", "Close", { type: "button" });
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(make("h2", "Keys"), make("dl", KEYS.flatMap(([k, v]) => [make("dt", k), make("dd", v)])), close);
  dialog.showModal();
}

// Esc undoes one thing at a time, the last made first.
function stepBack() {
  if (document.querySelector("main").dataset.only) return showOnly(document.querySelector("main").dataset.only);
  if (state.tile) return select({ pair: state.pair, launch: state.launch });
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

const STEPS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const ACTIONS = {
  "/": () => document.getElementById("search").select(),
  "+": () => panels[active].zoom(1.3), "=": () => panels[active].zoom(1.3), "-": () => panels[active].zoom(1 / 1.3),
  0: () => panels[active].fit(), f: () => showOnly(active), t: toggleTheme, "?": showKeys, Escape: stepBack,
  1: () => focusPanel("graph"), 2: () => focusPanel("matrix"), 3: () => focusPanel("lanes"),
  o: () => {
    const box = state.launch !== null && nodeFor(state.launch).parent;
    if (box?.group) toggleGroup(box);
  },
};

function focusPanel(name) {
  active = name;
  document.querySelector(`#${name} canvas`).focus();
}

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  const { key } = event;
  if (key in STEPS) {
    if (active === "graph") walkGraph(key);
    else panels[active].pan(STEPS[key][0] * 60, STEPS[key][1] * 40);
  } else if (key === "Enter" && event.target instanceof HTMLCanvasElement && state.launch !== null && !state.pair) {
    const i = [heaviestPair(state.launch, "consumer"), heaviestPair(state.launch, "producer")].find((p) => p >= 0);
    if (i !== undefined) select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  } else if (Object.hasOwn(ACTIONS, key)) ACTIONS[key]();
  else return;
  event.preventDefault();
}

function toggleTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  buildLegend();
  matrix.key && matrix.parts.length ? describePair() : rankPairs();
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
  showMatrix();
  showLanes();
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  showSummary();
  buildLegend();
  addButtons();
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
  document.documentElement.dataset.ready = "yes"; // for whoever waits for the page: tests, screenshots
}

start();
// For the console and for tests: where things are on the screen, and what is selected.
window.tileprof = { doc, laneTables, laneOf, startOf, state, select, views: panels, launches, pairs, matrix, drawing: () => drawing, nodeFor };
