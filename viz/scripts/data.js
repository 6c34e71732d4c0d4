// The data of the page: unpacks columns, and words and numbers for people.

if (!("DecompressionStream" in window)) {
  document.getElementById("command").textContent = "This page needs a browser of 2023 or later.";
}
export const doc = JSON.parse(document.getElementById("data").textContent);
export const HAZARDS = ["RAW", "WAR", "WAW"];
export const TIMINGS = ["measured", "modelled"];
export const COVERAGES = ["exact", "inferred", "conservative"];
const TYPES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

function fromBase64(data) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(data);
  const string = atob(data);
  const bytes = new Uint8Array(string.length);
  for (let i = 0; i < string.length; i++) bytes[i] = string.charCodeAt(i);
  return bytes;
}

// Values that would be as long as they are when compressed are not compressed.
async function inflate(packed) {
  const bytes = fromBase64(packed.data);
  const type = TYPES[packed.type];
  if (bytes.length === packed.n * type.BYTES_PER_ELEMENT) return new type(bytes.buffer);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new type(await new Response(stream).arrayBuffer());
}

export async function unpack(packed) {
  const values = await inflate(packed);
  if (!packed.delta) return values;
  return summed(values, Int32Array) ?? summed(values, Float64Array);
}

// Plain loops: a large relation has millions of values, and a callback for each would be seen. Null where a sum does
// not fit.
function summed(values, type) {
  const whole = new type(values.length);
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    sum += values[i];
    whole[i] = sum;
    if (whole[i] !== sum) return null;
  }
  return whole;
}

// A table of packed columns becomes a table of typed arrays; what is not packed stays as it is.
async function unpackTable(table) {
  const entries = Object.entries(table).map(async ([name, value]) => [
    name,
    value !== null && typeof value === "object" && "data" in value ? await unpack(value) : value,
  ]);
  return Object.fromEntries(await Promise.all(entries));
}

// Relations, lanes and grids are unpacked when first looked at, and kept. `better(i)` may promise a table that the file
// had no room for; what the file has stands in until it comes, and if it does not.
export function keeper(tables, better = () => null, opened = unpackTable) {
  const kept = new Map();
  return {
    ready: (i) => kept.get(i)?.value,
    load(i) {
      if (!kept.has(i)) {
        const entry = { value: undefined };
        const own = opened(tables[i]).then((value) => (entry.value ??= value));
        entry.promise =
          better(i)
            ?.then(opened)
            .then(
              (value) => (entry.value = value),
              () => own,
            ) ?? own;
        kept.set(i, entry);
      }
      return kept.get(i).promise;
    },
  };
}

// A relation without what only a pointer asks for: `details()` adds bytes and when in the tiles' lives they are
// touched.
async function unpackRelation({ bytes, last, first, ...shape }) {
  const block = await unpackTable(shape);
  let wanted = null;
  block.details = () =>
    (wanted ??= unpackTable(bytes ? { bytes, last, first } : {}).then((found) => Object.assign(block, found)));
  return block;
}

export const served = {}; // what a served page can do beyond one in a file: filled by server_requests.js
export const blocks = keeper(doc.blocks, (i) => (doc.blocks[i].parent ? null : served.block?.(i)), unpackRelation);
export const laneTables = keeper(doc.lanes, (i) => (doc.lanes[i].sm ? null : served.lanes?.(i)));
export const grids = keeper(doc.grids, (i) => (doc.grids[i].x ? null : served.grid?.(i)));
export const boxTables = keeper(doc.boxes, (i) => (doc.boxes[i].tile ? null : served.boxes?.(i)));
export const launches = await unpackTable(doc.launches);
export const pairs = await unpackTable(doc.pairs);
export const links = await unpackTable(doc.links);
export const uses = await unpackTable(doc.uses);
export const buffers = await unpackTable(doc.buffers);
export const laneOf = await unpack(doc.lane_of);
export const boxOf = Int32Array.from(await unpack(doc.box_of));
export const gridOf = Int32Array.from(await unpack(doc.grid_of));
export const launchCount = launches.tiles.length;
export const pairCount = pairs.producer.length;
export const text = (column, i) => doc.strings[column[i]];

export const pairAt = new Map();
for (let i = 0; i < pairCount; i++) pairAt.set(`${pairs.producer[i]},${pairs.consumer[i]}`, i);
export const pairsOf = Array.from({ length: launchCount }, () => []);
for (let i = 0; i < pairCount; i++) {
  pairsOf[pairs.producer[i]].push(i);
  pairsOf[pairs.consumer[i]].push(i);
}
export const linksOf = new Map();
for (let i = 0; i < links.block.length; i++) {
  const key = `${links.producer[i]},${links.consumer[i]}`;
  if (!linksOf.has(key)) linksOf.set(key, []);
  linksOf.get(key).push(i);
}

export const usesOf = Array.from({ length: launchCount }, () => []);
for (const [i, launch] of uses.launch.entries()) usesOf[launch].push(i);
export const tileBase = new Float64Array(launchCount + 1);
for (let i = 0; i < launchCount; i++) tileBase[i + 1] = tileBase[i] + launches.tiles[i];
export const timed = launches.duration_ns.some((ns) => ns > 0);
export const hasLanes = (schedule) => "sm" in schedule.lanes || "share" in schedule.lanes;

export const number = (n) => Math.round(n).toLocaleString("en-US");
export const short = (n) => Number(n.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 2 });

export function duration(ns) {
  if (ns >= 1e9) return `${short(ns / 1e9)} s`;
  if (ns >= 1e6) return `${short(ns / 1e6)} ms`;
  return ns >= 1e3 ? `${short(ns / 1e3)} us` : `${short(ns)} ns`;
}

// Ticks of an axis: one unit, and as many digits as tell neighbours apart.
export function tickTime(ns, step, largest) {
  const [unit, word] =
    largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "us"] : [1, "ns"];
  return `${(ns / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)))} ${word}`;
}

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1000;
  return `${short(bytes)} ${units[unit]}`;
}

export const compact = (n) =>
  n < 1e5 ? number(n) : n < 1e6 ? `${short(n / 1e3)} k` : n < 1e9 ? `${short(n / 1e6)} M` : `${short(n / 1e9)} G`;
export const plural = (n, word, many = `${word}s`) => `${number(n)} ${n === 1 ? word : many}`;
export const grid = (i) => [launches.grid_x[i], launches.grid_y[i], launches.grid_z[i]];
export const times = (three) => three.join("×");

// Tiles that run at the same time when the launch has the GPU to itself: sent, because clusters and persistent launches
// hold fewer.
export const deviceSlots = (i) => launches.slots?.[i] ?? doc.summary.sms * Math.max(launches.blocks_per_sm[i], 1);
export const waves = (i) => launches.tiles[i] / deviceSlots(i);

export const wavesWords = (i) => (waves(i) < 0.01 && waves(i) > 0 ? "< 0.01" : short(waves(i)));

// "void cutlass::Kernel<A, ns::B>(Params)" is called "Kernel<A, ns::B>" where there is no room: without result,
// namespaces and parameters. What is no such signature keeps every word.
export function shortName(name) {
  const plain = name.replaceAll("(anonymous namespace)::", "");
  let [depth, open, word, scope] = [0, -1, 0, 0];
  for (let k = 0; k < plain.length && open < 0; k++) {
    if (plain[k] === "<") depth++;
    else if (plain[k] === ">") depth = Math.max(depth - 1, 0);
    else if (depth) continue;
    else if (plain[k] === "(") open = k;
    else if (plain[k] === " ") word = k + 1;
    else if (plain[k] === ":") scope = k + 1;
  }
  if (open >= 0 && plain.endsWith(")")) return plain.slice(Math.max(word, scope), open) || name;
  return open < 0 && !word ? plain.slice(scope) || name : name;
}

const shortNames = new Map(); // by place in doc.strings: names are asked for in every frame

export function shortKernel(i) {
  const place = launches.kernel[i];
  if (!shortNames.has(place)) shortNames.set(place, shortName(doc.strings[place]));
  return shortNames.get(place) || text(launches.op, i) || `launch ${i}`;
}

// "transformer.h.3.mlp.c_fc" is called "3.mlp.c_fc" where there is no room.
export const shortModule = (i) => text(launches.module, i).split(".").slice(-3).join(".");

export function coordinates(launch, tile) {
  const table = grids.ready(gridOf[launch]);
  return table?.x ? `(${table.x[tile]}, ${table.y[tile]}, ${table.z[tile]})` : "";
}

const shortOp = (i) =>
  text(launches.op, i)
    .split("+")
    .map((op) => op.replace(/^.*::/, "").replace(/\..*$/, ""))
    .join("+");

// What a reader wrote comes first: the operator and its module; the kernel that ran for it is said after them.
export const launchName = (i) => shortOp(i) || shortKernel(i);
export const launchPlace = (i) => [shortModule(i), shortOp(i) && shortKernel(i)].filter(Boolean).join(" · ");

export const loadBoxes = (launch) => (boxOf[launch] < 0 ? Promise.resolve() : boxTables.load(boxOf[launch]));
export const loadGrid = (launch) => (gridOf[launch] < 0 ? Promise.resolve() : grids.load(gridOf[launch]));
