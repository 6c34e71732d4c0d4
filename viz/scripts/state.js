// One selection, shared by all views and kept in the address bar: #launch=3, #pair=3,5, #chain=3,5,6, #tile=5,17,
// #open=0.1, #view=tiles, #beside=list, #time=1200 (ns), #search=gemm, #if=cusync:window=4@132,0; `&` between them. The
// grammar is written down in viz/address.py, whose `link` makes such addresses.

import { doc, hasLanes, launchCount, launches, pairAt, served, text } from "./data.js";
import { readSetting, settingWords } from "./tabs/what_if.js";

export const TABS = { matrix: "Pairs", tiles: "Tile graph", tensor: "Tensor", gain: "Gain", sizes: "What if" };
export const state = {
  launch: null,
  pair: null,
  chain: null,
  tile: null,
  copies: {},
  open: new Set(),
  search: "",
  tab: "matrix",
  beside: "",
  time: null,
};
const watchers = [];
export const watch = (watcher) => watchers.push(watcher);

export function select(change) {
  const next = { launch: null, pair: null, chain: null, tile: null, ...change };
  if (next.pair && !["matrix", "tiles", "tensor"].includes(state.tab)) state.tab = "matrix";
  if (next.pair && next.launch === null)
    next.launch = state.launch !== null && next.pair.includes(state.launch) ? state.launch : next.pair[1];
  if (next.tile && next.launch === null) next.launch = next.tile[0];
  const chosen = () => JSON.stringify([state.pair, state.launch, state.chain]);
  const before = chosen();
  Object.assign(state, next);
  changed(chosen() !== before);
}

// `step`: the browser's Back undoes the change.
export function changed(step = false) {
  writeHash(step);
  for (const watcher of watchers) watcher();
}

export function writeHash(step = false) {
  const parts = [];
  if (state.pair) parts.push(`pair=${state.pair.join(",")}`);
  else if (state.launch !== null && !state.tile) parts.push(`launch=${state.launch}`);
  if (state.tile) parts.push(`tile=${state.tile.join(",")}`);
  if (state.chain) parts.push(`chain=${state.chain.join(",")}`);
  if (state.tab !== "matrix") parts.push(`view=${state.tab}`);
  if (state.beside) parts.push(`beside=${state.beside}`);
  if (state.time !== null) parts.push(`time=${Math.round(state.time)}`);
  if (state.open.size) parts.push(`open=${[...state.open].join(",")}`);
  if (state.search) parts.push(`search=${encodeURIComponent(state.search)}`);
  if (settingWords()) parts.push(`if=${settingWords()}`);
  const hash = parts.length ? `#${parts.join("&")}` : "";
  if (hash === location.hash) return;
  history[step ? "pushState" : "replaceState"](null, "", hash || location.pathname + location.search);
}

// An address that names what this trace does not have selects nothing.
export function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const numbers = (name) =>
    (given.get(name) ?? "")
      .split(",")
      .filter(Boolean)
      .map((word) => (/^\d+$/.test(word) ? Number(word) : NaN));
  const isLaunch = (i) => Number.isInteger(i) && i >= 0 && i < launchCount;
  const [launch] = numbers("launch");
  const pair = numbers("pair");
  const tile = numbers("tile");
  state.pair = pairAt.has(pair.join(",")) ? pair : null;
  state.tile = isLaunch(tile[0]) && tile.length === 2 && tile[1] < launches.tiles[tile[0]] ? tile : null;
  state.launch = isLaunch(launch) ? launch : state.pair ? state.pair[1] : state.tile ? state.tile[0] : null;
  const chain = numbers("chain");
  state.chain =
    state.pair?.every((i) => chain.includes(i)) && chain.every((i, k) => isLaunch(i) && (!k || i > chain[k - 1]))
      ? chain
      : null;
  state.tab = Object.hasOwn(TABS, given.get("view")) ? given.get("view") : "matrix";
  const beside = given.get("beside") ?? "";
  state.beside = doc.schedules.some((s) => s.name === beside && hasLanes(s)) ? beside : "";
  if (beside && !state.beside) served.besides?.(beside);
  const time = given.get("time") ? Number(given.get("time")) : NaN;
  state.time = Number.isFinite(time) && time >= 0 ? time : null;
  state.open = new Set((given.get("open") ?? "").split(",").filter(Boolean));
  state.search = given.get("search") ?? "";
  readSetting(given.get("if") ?? "");
}

// A word is looked for in all three names, or in one: "kernel:gemm", "op:addmm", "module:h.3".
function matches(i, words) {
  const names = ["kernel", "op", "module"].map((column) => [column, text(launches[column], i).toLowerCase()]);
  return words.every((word) => {
    const only = names.find(([column]) => word.startsWith(`${column}:`));
    return only ? only[1].includes(word.slice(only[0].length + 1)) : names.some(([, name]) => name.includes(word));
  });
}

export const found = new Set();
export function findLaunches() {
  found.clear();
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return;
  for (let i = 0; i < launchCount; i++) if (matches(i, words)) found.add(i);
}
