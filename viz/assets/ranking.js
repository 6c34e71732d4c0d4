// Without a pair: the pairs to look at first, copies of a layer together.

const MOST_RANKED = 100;

// Dependent pairs as the launch graph draws them, first those to look at first.
function rankedEdges() {
  const near = (edge) => state.launch === null || edge.a === nodeFor(state.launch) || edge.b === nodeFor(state.launch);
  const direct = (e) => pairs.direct[e.pair];
  const inPolicy = (e) => (overlayOf.size && e.pairs.some((i) => overlayOf.has(i)) ? 1 : 0);
  const inReport = (e) => Math.min(...e.pairs.map((i) => (pairs.group?.[i] >= 0 ? pairs.group[i] : pairCount)));
  return drawing.edges.filter(near).sort((p, q) => inPolicy(q) - inPolicy(p) || inReport(p) - inReport(q) || direct(q) - direct(p) || q.gain - p.gain || q.bytes - p.bytes);
}

function rankPairs() {
  const rows = rankedEdges();
  const title = state.launch === null ? "Pairs to look at first" : `Pairs of launch ${state.launch}`;
  document.getElementById("matrix-title").textContent = title;
  document.getElementById("matrix-says").textContent = rows.length ? `${overlayOf.size ? "the policy's, then " : ""}by ${anyGain ? "what overlap could gain" : "dependent bytes"} · choose one to see its tiles` : "";
  const list = document.getElementById("ranking");
  if (!rows.length) return list.replaceChildren(make("p", noPairs()));
  const head = ["pattern", "producer", "consumer", ...(anyGain ? ["start early", "gain up to"] : ["edges", "bytes"]), "copies"];
  const body = rows.slice(0, MOST_RANKED).map(rankRow);
  const table = make("table", [
    make("thead", [make("tr", head.map((h, k) => make("th", h, { ...(k > 2 && { class: "number" }), ...(HEAD_TITLES[h] && { title: HEAD_TITLES[h] }) })))]), make("tbody", body),
  ]);
  const more = rows.length > MOST_RANKED ? [make("p", `and ${number(rows.length - MOST_RANKED)} more, in the graph`)] : [];
  list.replaceChildren(table, ...more);
}

const HEAD_TITLES = {
  "start early": "Share of the consumer's tiles whose producers all end before the producer launch does, in stream order: they could start early",
  "gain up to": "Recorded time of the two launches and the gap between them, less the bound on both: no overlap of the two saves more. Of one copy; the order is that of all copies together",
  copies: "Pairs of repeated layers that this row stands for",
};

// Nothing can start early where the producer's tiles all end together: then a gain is the launch gap and idle slots.
const oneWave = (i) => !(pairs.early[i] > 0) && waves(pairs.producer[i]) <= 1;

function earlyWords(i) {
  if (!Number.isFinite(pairs.early[i])) return "–";
  return oneWave(i) ? "one wave" : Math.round(100 * pairs.early[i]) + "%";
}

function earlyTitle(i) {
  if (!Number.isFinite(pairs.early[i])) return "not known";
  if (oneWave(i)) return "The producer's tiles run in one wave and end together, so no consumer tile can start before that. What overlap gains here is the launch gap and the slots that the wave leaves idle.";
  if (!(pairs.early[i] > 0)) return "Every consumer tile needs a tile of the producer's last wave.";
  return HEAD_TITLES["start early"];
}

function noPairs() {
  if (launchCount < 2) return launchCount ? "One launch: there is nothing that it could depend on." : "The trace holds no launches.";
  if (!doc.summary.accesses) return "The trace holds no accesses, so nothing is known about dependencies between its launches.";
  if (!pairCount) return "No launch depends on another one.";
  return "No pair is shown; patterns may be hidden in the legend.";
}

function rankRow(edge) {
  const i = edge.pairs.find((p) => overlayOf.has(p)) ?? edge.pair;
  const launch = (l) => make("td", [make("span", shortKernel(l)), make("span", [shortModule(l), shortOp(l)].filter(Boolean).join(" · "), { class: "module" })], { title: text(launches.kernel, l) });
  const facts = anyGain ? [earlyWords(i), pairs.gain_ns[i] > 0 ? duration(pairs.gain_ns[i]) : "–"] : [number(shownEdges(i)), size(pairs.bytes[i])];
  const numbers = [...facts, edge.pairs.length > 1 ? "×" + edge.pairs.length : ""];
  const name = doc.strings[pairs.pattern[i]];
  const verdict = edge.pairs.some(missesSome) ? [make("span", "waits missing", { class: "bad" })] : [];
  const row = make("tr", [
    make("td", [patternMark(name), document.createTextNode(name.replaceAll("_", " ")), ...verdict]), launch(pairs.producer[i]), launch(pairs.consumer[i]),
    ...numbers.map((n, k) => make("td", n, { class: "number", ...(anyGain && k === 0 && { title: earlyTitle(i) }), ...(k === 1 && edge.pairs.length > 1 && { title: `one copy; ${anyGain ? duration(edge.gain) : size(edge.bytes)} in all ${edge.pairs.length}` }) })),
  ], { tabindex: "0" });
  const choose = () => select({ pair: [pairs.producer[i], pairs.consumer[i]] });
  row.addEventListener("click", choose);
  row.addEventListener("keydown", (e) => e.key === "Enter" && choose());
  return row;
}
