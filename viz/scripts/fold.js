// The launches to draw: repeated layers closed to one copy, or opened to all of them.

import { doc, launchCount, launches, links, linksOf, pairCount, pairs, text } from "./data.js";
import { state } from "./state.js";
import { hiddenPatterns, showReuse } from "./tabs/launches.js";

export const NODE = { width: 196, least: 196, most: 330, height: 46 };

// Which copy of each closed group shows `launch`, so that a selected launch is always in the drawing.
export function reveal(launch, items = doc.fold, base = 0, path = "") {
  items.forEach((item, k) => {
    const from = base + item.start;
    if ("launch" in item || launch < from || launch >= from + item.period * item.count) return;
    const copy = Math.floor((launch - from) / item.period);
    state.copies[path + k] = copy;
    reveal(launch, item.items, from + copy * item.period, `${path + k}.`);
  });
}

// `nodes` in issue order; `nodeOf[launch]` is the node that stands for a launch, `copyOf[launch]` its copy in each
// closed group around it.
// `unfolded`: with the launches of every module, so that pairs inside of a closed one can be listed.
export function buildDrawing(unfolded = false) {
  const drawing = {
    unfolded,
    root: { children: [], boxed: true },
    nodes: [],
    boxes: [],
    nodeOf: new Int32Array(launchCount),
    copyOf: [],
  };
  fill(drawing, drawing.root, doc.fold, [{ at: 0, copies: [] }], 0, "", []);
  drawing.edges = mergePairs(drawing);
  return drawing;
}

// `stands` are the places that the items stand for; the one at `shown` is drawn.
function fill(drawing, parent, items, stands, shown, path, closed) {
  items.forEach((item, k) => {
    if ("launch" in item) {
      const node = {
        launch: stands[shown].at + item.launch,
        parent,
        index: drawing.nodes.length,
        closed,
        w: NODE.width,
        h: NODE.height,
        count: stands.length,
      };
      drawing.nodes.push(node);
      parent.children.push(node);
      for (const { at, copies } of stands) {
        drawing.nodeOf[at + item.launch] = node.index;
        drawing.copyOf[at + item.launch] = copies;
      }
      return;
    }
    const id = path + k;
    if ("module" in item && !drawing.unfolded && !state.open.has(id)) {
      addModule(drawing, { item, id, parent, closed }, stands, shown);
      return;
    }
    const at = (stand, copy) => stand.at + item.start + copy * item.period;
    const add = (copy, open, inner, innerShown) => {
      const box = {
        boxed: true,
        children: [],
        parent,
        group: id,
        copy,
        open,
        count: item.count,
        period: item.period,
        begin: at(stands[shown], copy),
        module: item.module,
      };
      drawing.boxes.push(box);
      parent.children.push(box);
      fill(drawing, box, item.items, inner, innerShown, `${id}.`, open ? closed : [...closed, box]);
    };
    if (state.open.has(id) || "module" in item) {
      for (let c = 0; c < item.count; c++)
        add(
          c,
          true,
          stands.map((s) => ({ at: at(s, c), copies: s.copies })),
          shown,
        );
      return;
    }
    const copy = Math.min(state.copies[id] ?? 0, item.count - 1);
    const all = stands.flatMap((s) =>
      Array.from({ length: item.count }, (_, c) => ({ at: at(s, c), copies: [...s.copies, c] })),
    );
    add(copy, false, all, shown * item.count + copy);
  });
}

// One node for all launches of a closed module.
function addModule(drawing, { item, id, parent, closed }, stands, shown) {
  const launch = stands[shown].at + item.start;
  const node = {
    launch,
    parent,
    index: drawing.nodes.length,
    closed,
    w: NODE.width,
    h: NODE.height,
    count: stands.length,
    module: item.module,
    group: id,
    period: item.period,
    duration_ns: launches.duration_ns.slice(launch, launch + item.period).reduce((sum, ns) => sum + ns, 0),
  };
  drawing.nodes.push(node);
  parent.children.push(node);
  for (const { at, copies } of stands) {
    for (let i = at + item.start; i < at + item.start + item.period; i++) {
      drawing.nodeOf[i] = node.index;
      drawing.copyOf[i] = copies;
    }
  }
}

// The one rule of memory reuse: while it is off, its links are not counted, drawn or listed in any view.
export const shownLink = (link) => showReuse || !links.reuse[link];
export const shownLinks = (from, to) => (linksOf.get(`${from},${to}`) ?? []).filter(shownLink);
// As `tileprof report` counts: the edges that the pattern describes; with memory reuse all of them.
export const shownEdges = (i) => (showReuse ? pairs.edges[i] : pairs.raw[i] || pairs.war[i] + pairs.waw[i]);
export const shownPair = (i) =>
  !hiddenPatterns.has(doc.strings[pairs.pattern[i]]) && (showReuse || !pairs.reuse_only[i]);

// One edge for all pairs that are drawn between the same two nodes; `loop` goes from one copy to a later one.
function mergePairs({ nodes, nodeOf, copyOf }) {
  const edges = new Map();
  for (let i = 0; i < pairCount; i++) {
    if (!shownPair(i)) continue;
    const [from, to] = [pairs.producer[i], pairs.consumer[i]];
    const [a, b] = [nodes[nodeOf[from]], nodes[nodeOf[to]]];
    let around = null;
    for (let k = 0; k < a.closed.length && a.closed[k] === b.closed[k] && !around; k++) {
      if (copyOf[from][k] !== copyOf[to][k]) around = a.closed[k];
    }
    if (a === b && !around) continue; // inside of a closed module
    const key = `${a.index},${b.index},${around ? 1 : 0}`;
    if (!edges.has(key)) edges.set(key, { a, b, around, pairs: [], bytes: 0, gain: 0, pair: i });
    const edge = edges.get(key);
    edge.pairs.push(i);
    edge.bytes += pairs.bytes[i];
    edge.gain += pairs.gain_ns[i] || 0;
    const drawn = from === a.launch && to === b.launch;
    if (drawn || (around && to === b.launch)) edge.pair = i;
  }
  return [...edges.values()];
}

export function commonModule(begin, end) {
  let common = null;
  for (let i = begin; i < end; i++) {
    const parts = text(launches.module, i).split(".");
    if (common === null) common = parts;
    let same = 0;
    while (same < common.length && common[same] === parts[same]) same++;
    common = common.slice(0, same);
  }
  return (common ?? []).join(".");
}
