// Without a pair: the pairs to look at first, copies of a layer together.

import { make, patternMark } from "../canvas.js";
import {
  doc,
  duration,
  launchCount,
  launches,
  launchName,
  launchPlace,
  number,
  pairCount,
  pairs,
  size,
  text,
  waves,
} from "../data.js";
import { shownEdges } from "../fold.js";
import { info } from "../glossary.js";
import { found, select, state } from "../state.js";
import { anyGain, drawing } from "./launches.js";
import { missesSome, overlayOf } from "./pairs.js";

const MOST_RANKED = 100;

// The order that a reader asked for by a column's header; none: the report's.
const order = { column: "", down: true };

// Dependent pairs as the launch graph draws them, first those to look at first; a search leaves those of launches
// found.
export function rankedEdges() {
  const { nodes, nodeOf } = drawing.flat;
  const near = (edge) => state.launch === null || [edge.a, edge.b].includes(nodes[nodeOf[state.launch]]);
  const wanted = (edge) =>
    !state.search || edge.pairs.some((i) => found.has(pairs.producer[i]) || found.has(pairs.consumer[i]));
  const direct = (e) => pairs.direct[e.pair];
  const inPolicy = (e) => (overlayOf.size && e.pairs.some((i) => overlayOf.has(i)) ? 1 : 0);
  const inReport = (e) => Math.min(...e.pairs.map((i) => (pairs.group?.[i] >= 0 ? pairs.group[i] : pairCount)));
  const edges = drawing.flat.edges
    .filter((e) => near(e) && wanted(e))
    .sort(
      (p, q) =>
        inPolicy(q) - inPolicy(p) ||
        inReport(p) - inReport(q) ||
        direct(q) - direct(p) ||
        q.gain - p.gain ||
        q.bytes - p.bytes,
    );
  const value = SORTS[order.column];
  if (!value) return edges;
  const sign = order.down ? -1 : 1;
  return edges.sort((p, q) => {
    const [x, y] = [value(p), value(q)];
    return (
      sign * (typeof x === "string" ? x.localeCompare(y) : (Number.isNaN(x) ? -1 : x) - (Number.isNaN(y) ? -1 : y))
    );
  });
}

const SORTS = {
  pattern: (e) => doc.strings[pairs.pattern[e.pair]],
  producer: (e) => launchName(pairs.producer[e.pair]),
  consumer: (e) => launchName(pairs.consumer[e.pair]),
  "start early": (e) => pairs.early[e.pair],
  "gain each": (e) => pairs.gain_ns[e.pair],
  "gain in all": (e) => e.gain,
  edges: (e) => shownEdges(e.pair),
  bytes: (e) => pairs.bytes[e.pair],
  copies: (e) => e.pairs.length,
};

function sortHead(name, k) {
  const chosen = order.column === name;
  const button = make("button", name, { type: "button" });
  button.addEventListener("click", () => {
    Object.assign(
      order,
      !chosen
        ? { column: name, down: k > 2 }
        : order.down === k > 2
          ? { down: !order.down }
          : { column: "", down: true },
    );
    rankPairs();
    document.querySelector(`#ranking th:nth-child(${k + 1}) button`)?.focus();
  });
  const attributes = { scope: "col", "aria-sort": chosen ? (order.down ? "descending" : "ascending") : "none" };
  if (k > 2) attributes.class = "number";
  if (HEAD_TITLES[name]) attributes.title = HEAD_TITLES[name];
  return make("th", [button], attributes);
}

export function rankPairs() {
  const rows = rankedEdges();
  const title = state.launch === null ? "Top pairs" : `Pairs of launch ${state.launch}`;
  document.getElementById("matrix-title").textContent = title;
  const by = order.column
    ? `by ${order.column}`
    : `as in the report: by ${anyGain ? "what overlap could gain while all else stays ordered" : "dependent bytes"}`;
  document.getElementById("matrix-says").textContent = rows.length
    ? `${overlayOf.size && !order.column ? "the policy's first, then " : ""}sorted ${by} · choose one to see its tiles`
    : "";
  const list = document.getElementById("ranking");
  if (!rows.length) return list.replaceChildren(make("p", noPairs()));
  const head = [
    "pattern",
    "producer",
    "consumer",
    ...(anyGain ? ["start early", "gain each", "gain in all"] : ["edges", "bytes"]),
    "copies",
  ];
  const table = make("table", [
    make("thead", [make("tr", head.map(sortHead))]),
    make("tbody", rows.slice(0, MOST_RANKED).map(rankRow)),
  ]);
  table.querySelector("tbody tr").tabIndex = 0;
  table.addEventListener("keydown", walkRows);
  if (anyGain) table.querySelector("th:nth-child(4)").append(info("pairs"));
  const more =
    rows.length > MOST_RANKED ? [make("p", `and ${number(rows.length - MOST_RANKED)} more, in the graph`)] : [];
  list.replaceChildren(table, ...more);
}

// Arrows move along the rows, which are one stop of the Tab key.
function walkRows(event) {
  const rows = [...document.querySelectorAll("#ranking tbody tr")];
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -rows.length, End: rows.length }[event.key];
  const at = rows.indexOf(document.activeElement);
  if (!step || at < 0) return;
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  rows[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
  event.stopPropagation();
}

const HEAD_TITLES = {
  "start early":
    "Share of the consumer's tiles whose producers all end before the producer launch does, in stream order: " +
    "they could start early",
  "gain each":
    "Recorded time of the two launches and the gap between them, less the bound on both: no overlap of the two saves " +
    "more. Of one copy",
  "gain in all": "The same for all copies together: what the pairs are ordered by",
  copies: "Pairs of repeated layers in this row",
};

// Nothing can start early where the producer's tiles all end together: then a gain is the launch gap and idle slots.
const oneWave = (i) => !(pairs.early[i] > 0) && waves(pairs.producer[i]) <= 1;

export function earlyWords(i) {
  if (!Number.isFinite(pairs.early[i])) return "–";
  return oneWave(i) ? "one wave" : `${Math.round(100 * pairs.early[i])}%`;
}

export function earlyTitle(i) {
  if (!Number.isFinite(pairs.early[i])) return "not known";
  if (oneWave(i))
    return (
      "The producer's tiles run in one wave and end together, so no consumer tile can start before that. " +
      "What overlap gains here is the launch gap and the slots that the wave leaves idle."
    );
  if (!(pairs.early[i] > 0)) return "Every consumer tile needs a tile of the producer's last wave.";
  return HEAD_TITLES["start early"];
}

export function noPairs() {
  if (launchCount < 2)
    return launchCount ? "The trace holds one launch, which depends on nothing." : "The trace holds no launches.";
  if (!doc.summary.accesses) return "The trace holds no accesses, so dependencies between its launches are unknown.";
  if (!pairCount) return "No launch depends on another one.";
  if (state.search) return "No matching launch has a pair.";
  return "No pair is shown; patterns may be hidden in the legend.";
}

function rankRow(edge) {
  const i = edge.pairs.find((p) => overlayOf.has(p)) ?? edge.pair;
  const launch = (l, ...more) =>
    make("td", [make("span", launchName(l)), ...more, make("span", launchPlace(l), { class: "module" })], {
      title: text(launches.kernel, l),
    });
  const facts = anyGain
    ? [
        earlyWords(i),
        pairs.gain_ns[i] > 0 ? duration(pairs.gain_ns[i]) : "–",
        edge.gain > 0 ? duration(edge.gain) : "–",
      ]
    : [number(shownEdges(i)), size(pairs.bytes[i])];
  const numbers = [...facts, edge.pairs.length > 1 ? `×${edge.pairs.length}` : ""];
  const name = doc.strings[pairs.pattern[i]];
  const verdict = edge.pairs.some(missesSome) ? [make("span", "waits missing", { class: "bad" })] : [];
  const row = make(
    "tr",
    [
      make("td", [patternMark(name), document.createTextNode(name), ...verdict]),
      launch(pairs.producer[i], make("span", `→ ${launchName(pairs.consumer[i])}`, { class: "narrow" })),
      launch(pairs.consumer[i]),
      ...numbers.map((n, k) =>
        make("td", n, {
          class: "number",
          ...(anyGain && k === 0 && { title: earlyTitle(i) }),
          ...(!anyGain &&
            k === 1 &&
            edge.pairs.length > 1 && { title: `one copy; ${size(edge.bytes)} in all ${edge.pairs.length}` }),
        }),
      ),
    ],
    { tabindex: "-1" },
  );
  const choose = () => select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  row.addEventListener("click", choose);
  row.addEventListener("keydown", (e) => e.key === "Enter" && choose());
  return row;
}
