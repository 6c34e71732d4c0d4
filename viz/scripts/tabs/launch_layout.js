// Layered drawing, top down: producers above consumers, boxes within boxes.
//
// Each box is laid out alone: ranks by longest path, long edges through bends (one trunk per producer), order by
// barycentres, and places by least squares under the order (pool adjacent violators). Edges that leave or enter a
// box pass through ports on its border, so that nothing is drawn across a node.

export const GAP = { node: 22, bend: 9, rank: 38, side: 16, head: 32, foot: 14, port: 14 };

export function layOut(drawing) {
  prepare(drawing.root);
  for (const box of drawing.boxes) prepare(box);
  for (const edge of drawing.edges) spread(edge);
  layOutBox(drawing.root);
  place(drawing.root, 0, 0);
  for (const edge of drawing.edges) edge.path = joinRoutes(edge);
  drawing.width = drawing.root.w;
  drawing.height = drawing.root.h;
}

const prepare = (box) => Object.assign(box, { links: [], exits: new Map(), entries: new Map() });

function ancestors(node) {
  const chain = [];
  for (let at = node; at.parent; at = at.parent) chain.push({ box: at.parent, child: at });
  return chain; // innermost first
}

// Tell every box on an edge's way what passes through it.
function spread(edge) {
  const [up, down] = [ancestors(edge.a), ancestors(edge.b)];
  const shared = new Set(down.map((s) => s.box));
  const meeting = edge.around ?? up.find((s) => shared.has(s.box)).box;
  const passes = (chain) => {
    const at = chain.findIndex((s) => s.box === meeting);
    return chain.slice(0, edge.around ? at + 1 : at);
  };
  edge.leaves = passes(up);
  edge.arrives = passes(down);
  edge.meeting = meeting;
  for (const { box, child } of edge.leaves) box.exits.set(edge.a, child);
  for (const { box, child } of edge.arrives) box.entries.set(edge.b, child);
  if (!edge.around) {
    const child = (chain) => chain.find((s) => s.box === meeting).child;
    meeting.links.push({ from: child(up), to: child(down), a: edge.a, b: edge.b });
  }
}

function layOutBox(box) {
  for (const child of box.children) if (child.boxed) layOutBox(child);
  const ranks = rankChildren(box);
  const net = new Net(box, ranks);
  net.order();
  net.assign();
  measure(box, net);
}

function rankChildren(box) {
  const before = new Map(box.children.map((c) => [c, []]));
  const after = new Map(box.children.map((c) => [c, []]));
  for (const { from, to } of box.links) {
    before.get(to).push(from);
    after.get(from).push(to);
  }
  const rank = new Map();
  for (const child of box.children) rank.set(child, Math.max(0, ...before.get(child).map((p) => rank.get(p) + 1)));
  const fed = new Set(box.entries.values());
  for (const child of [...box.children].reverse()) {
    const next = after.get(child).map((c) => rank.get(c));
    if (!before.get(child).length && !fed.has(child) && next.length) rank.set(child, Math.min(...next) - 1);
  }
  return rank;
}

// The vertices of one box in layers (nodes, bends, ports) and the segments between neighbouring layers.
class Net {
  constructor(box, rank) {
    this.last = Math.max(-1, ...rank.values()) + 1;
    this.layers = Array.from({ length: this.last + 2 }, () => []);
    this.routes = { link: new Map(), exit: new Map(), entry: new Map() };
    const at = new Map();
    for (const child of box.children) at.set(child, this.vertex(rank.get(child), child.w, child));
    const trunks = new Map();
    const trunk = (a, child, depth) => {
      if (!trunks.has(a)) trunks.set(a, [at.get(child)]);
      const chain = trunks.get(a);
      while (chain[0].rank + chain.length <= depth) this.extend(chain, a, child);
      return chain.slice(0, depth - chain[0].rank + 1);
    };
    for (const { from, to, a, b } of box.links) {
      const chain = trunk(a, from, rank.get(to) - 1);
      this.join(chain.at(-1), at.get(to), chain.length === 1 ? offsetOut(from, a) : 0, offsetIn(to, b));
      this.routes.link.set(routeKey(a, b), { from, a, to, b, chain: [...chain, at.get(to)] });
    }
    for (const [a, child] of box.exits) {
      const chain = trunk(a, child, this.last - 1);
      const port = this.vertex(this.last, 1);
      this.join(chain.at(-1), port, chain.length === 1 ? offsetOut(child, a) : 0, 0);
      this.routes.exit.set(a, { from: child, a, chain: [...chain, port] });
    }
    for (const [b, child] of box.entries) {
      const chain = [this.vertex(-1, 1)];
      while (chain[0].rank + chain.length < rank.get(child)) this.extend(chain);
      this.join(chain.at(-1), at.get(child), 0, offsetIn(child, b));
      this.routes.entry.set(b, { to: child, b, chain: [...chain, at.get(child)] });
    }
  }

  vertex(rank, width, item = null) {
    const layer = this.layers[rank + 1];
    const made = { rank, width, item, x: 0, up: [], down: [], place: layer.length };
    layer.push(made);
    return made;
  }

  extend(chain, a = null, child = null) {
    const end = chain.at(-1);
    const bend = this.vertex(end.rank + 1, 1);
    this.join(end, bend, end.item && child ? offsetOut(child, a) : 0, 0);
    chain.push(bend);
  }

  join(above, below, offsetAbove, offsetBelow) {
    // A straight trunk is worth more than a node exactly above its consumer.
    const weight = (above.item ? 1 : 3) * (below.item ? 1 : 3);
    above.down.push({ to: below, shift: offsetBelow - offsetAbove, weight });
    below.up.push({ to: above, shift: offsetAbove - offsetBelow, weight });
  }

  order() {
    for (let round = 0; round < 8; round++) {
      const side = round % 2 ? "down" : "up";
      const layers = round % 2 ? [...this.layers].reverse() : this.layers;
      for (const layer of layers) {
        for (const v of layer) {
          const near = v[side];
          v.wish = near.length ? near.reduce((s, e) => s + e.to.place, 0) / near.length : v.place;
        }
        layer.sort((p, q) => p.wish - q.wish || p.place - q.place);
        for (const [i, v] of layer.entries()) v.place = i;
      }
    }
  }

  assign() {
    for (const layer of this.layers)
      settle(
        layer,
        layer.map(() => 0),
        layer.map(() => 1),
      );
    for (let round = 0; round < 14; round++) {
      const sides = round >= 12 ? ["up", "down"] : [round % 2 ? "down" : "up"];
      for (const layer of round % 2 ? [...this.layers].reverse() : this.layers) {
        const near = layer.map((v) => sides.flatMap((s) => v[s]));
        const total = near.map((edges) => edges.reduce((s, e) => s + e.weight, 0));
        const wish = near.map((edges, i) =>
          edges.length ? edges.reduce((s, e) => s + e.weight * (e.to.x + e.shift), 0) / total[i] : layer[i].x,
        );
        settle(
          layer,
          wish,
          total.map((t) => t || 0.2),
        );
      }
    }
  }
}

const routeKey = (a, b) => `${a.index},${b.index}`;
const offsetOut = (child, a) => (child.boxed ? child.exitX.get(a) - child.w / 2 : 0);
const offsetIn = (child, b) => (child.boxed ? child.entryX.get(b) - child.w / 2 : 0);

// Centres nearest to the wishes (weighted least squares) that keep the order and the distances of a layer.
function settle(layer, wish, weight) {
  const offset = [];
  layer.forEach((v, i) => {
    const before = layer[i - 1];
    const gap = before?.item || v.item ? GAP.node : GAP.bend;
    offset.push(i ? offset[i - 1] + before.width / 2 + gap + v.width / 2 : 0);
  });
  const pools = [];
  wish.forEach((w, i) => {
    let pool = { sum: (w - offset[i]) * weight[i], weight: weight[i], size: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).weight > pool.sum / pool.weight) {
      const last = pools.pop();
      pool = { sum: last.sum + pool.sum, weight: last.weight + pool.weight, size: last.size + pool.size };
    }
    pools.push(pool);
  });
  let i = 0;
  for (const pool of pools) for (let k = 0; k < pool.size; k++, i++) layer[i].x = pool.sum / pool.weight + offset[i];
}

// Heights, the box's size, and routes in the box's own coordinates.
function measure(box, net) {
  const isRoot = !box.parent;
  const all = net.layers.flat();
  const left = all.length ? Math.min(...all.map((v) => v.x - v.width / 2)) : 0;
  const right = all.length ? Math.max(...all.map((v) => v.x + v.width / 2)) : 0;
  const shift = GAP.side - left;
  const [head, foot] = isRoot ? [GAP.side, GAP.side] : [GAP.head, GAP.foot];
  let y = head + (box.entries.size ? GAP.port : 0);
  const top = new Map();
  const bottom = new Map();
  for (let rank = 0; rank < net.last; rank++) {
    const height = Math.max(0, ...net.layers[rank + 1].map((v) => v.item?.h ?? 0));
    top.set(rank, y);
    bottom.set(rank, y + height);
    y += height + GAP.rank;
  }
  y += (net.last ? -GAP.rank : 0) + foot + (box.exits.size ? GAP.port : 0);
  top.set(net.last, y);
  for (const v of all) {
    v.x += shift;
    if (v.item) Object.assign(v.item, { x: v.x - v.item.w / 2, y: top.get(v.rank) });
  }
  Object.assign(box, { w: right - left + 2 * GAP.side, h: Math.max(y, head + foot) });
  const ends = (route) =>
    route.chain.flatMap((v, i) => {
      if (v.item && i === 0) {
        const x = v.x + offsetOut(route.from, route.a);
        return [
          [x, v.item.y + v.item.h],
          [x, bottom.get(v.rank)],
        ]; // straight down past taller neighbours
      }
      if (v.item) return [[v.x + offsetIn(route.to, route.b), v.item.y]];
      if (v.rank === -1) return [[v.x, 0]];
      if (v.rank === net.last) return [[v.x, y]];
      return [
        [v.x, top.get(v.rank)],
        [v.x, bottom.get(v.rank)],
      ];
    });
  const points = (routes) => new Map([...routes].map(([key, route]) => [key, ends(route)]));
  box.linkRoutes = points(net.routes.link);
  box.exitRoutes = points(net.routes.exit);
  box.entryRoutes = points(net.routes.entry);
  box.exitX = new Map([...box.exitRoutes].map(([a, route]) => [a, route.at(-1)[0]]));
  box.entryX = new Map([...box.entryRoutes].map(([b, route]) => [b, route[0][0]]));
}

function place(box, x, y) {
  Object.assign(box, { ax: x, ay: y });
  for (const child of box.children) {
    if (child.boxed) place(child, x + child.x, y + child.y);
    else Object.assign(child, { ax: x + child.x, ay: y + child.y });
  }
}

// The whole way of an edge: out of its boxes, across, and into the consumer's boxes.
function joinRoutes(edge) {
  const from = (box, route) => route.map(([x, y]) => [x + box.ax, y + box.ay]);
  const out = edge.leaves.flatMap(({ box }) => from(box, box.exitRoutes.get(edge.a)));
  const into = [...edge.arrives].reverse().flatMap(({ box }) => from(box, box.entryRoutes.get(edge.b)));
  if (!edge.around)
    return trace([...out, ...from(edge.meeting, edge.meeting.linkRoutes.get(routeKey(edge.a, edge.b))), ...into]);
  const box = edge.around;
  const side = box.ax + box.w + 12 + (edge.a.index % 4) * 5;
  const [first, last] = [out.at(-1), into[0]];
  return trace(out, into, [
    [first, [first[0], first[1] + 26], [side, first[1] + 26], [side, first[1] - 14]],
    [[side, last[1] + 14], [side, last[1] - 26], [last[0], last[1] - 26], last],
  ]);
}

// A drawable path and the samples of it that hovering is tested against.
function trace(points, more = [], bows = []) {
  const path = new Path2D();
  const samples = [];
  const run = (list) =>
    list.forEach(([x, y], i) => {
      if (i === 0) {
        samples.push([x, y]);
        return;
      }
      const [px, py] = list[i - 1];
      if (px === x) path.lineTo(x, y);
      else path.bezierCurveTo(px, (py + y) / 2, x, (py + y) / 2, x, y);
      for (let t = 0.125; t <= 1; t += 0.125)
        samples.push([px + (x - px) * t * t * (3 - 2 * t), bezier(t, py, (py + y) / 2, (py + y) / 2, y)]);
    });
  const bow = ([p, q, r, s]) => {
    path.bezierCurveTo(...q, ...r, ...s);
    for (let t = 0.125; t <= 1; t += 0.125)
      samples.push([bezier(t, p[0], q[0], r[0], s[0]), bezier(t, p[1], q[1], r[1], s[1])]);
  };
  path.moveTo(...points[0]);
  run(points);
  if (bows.length) {
    bow(bows[0]);
    path.lineTo(...bows[1][0]);
    samples.push(bows[1][0]);
    bow(bows[1]);
    run(more);
  }
  const xs = samples.map((p) => p[0]);
  const ys = samples.map((p) => p[1]);
  return {
    path,
    samples,
    end: samples.at(-1),
    left: Math.min(...xs),
    right: Math.max(...xs),
    top: Math.min(...ys),
    bottom: Math.max(...ys),
  };
}

const bezier = (t, p, q, r, s) => (1 - t) ** 3 * p + 3 * (1 - t) ** 2 * t * q + 3 * (1 - t) * t * t * r + t ** 3 * s;
