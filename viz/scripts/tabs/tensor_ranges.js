// Strided boxes of bytes on the axes of a tensor: index ranges, and how much of each cell of a picture they cover.
//
// A tensor is {offset, item, shape, strides}: bytes of its first element in the buffer and of one element; strides in
// elements. A range is [low, high) per axis; a box becomes one where its repetitions run along axes, else several.

const MOST_RANGES = 50_000;
const MOST_CELLS = 512; // along one side of a picture

// Axes that tell elements apart, those with the largest strides first.
function ordered({ shape, strides }) {
  const axes = shape.map((size, axis) => ({ axis, size, stride: strides[axis] })).filter((a) => a.size > 1);
  return axes.filter((a) => a.stride > 0).sort((p, q) => q.stride - p.stride);
}

// Ranges of the elements [begin, begin + length) from the tensor's first element on.
function rangesOfRun(begin, length, axes, shape) {
  const whole = () => shape.map((size) => [0, size]);
  const split = (from, count, k) => {
    if (count <= 0) return [];
    if (k === axes.length) return [shape.map(() => [0, 1])];
    const { axis, size, stride } = axes[k];
    const [first, last] = [Math.floor(from / stride), Math.floor((from + count - 1) / stride)];
    if (first >= size || last < 0) return []; // outside of the tensor: padding, or a neighbour in the buffer
    const at = (low, high, inner) => inner.map((range) => range.map((r, a) => (a === axis ? [low, high] : r)));
    if (first === last) return at(first, first + 1, split(from - first * stride, count, k + 1));
    const parts = [];
    let [low, high] = [first, last + 1];
    const inner = k + 1 < axes.length;
    if (inner && from > first * stride) {
      parts.push(...at(first, first + 1, split(from - first * stride, (first + 1) * stride - from, k + 1)));
      low++;
    }
    const left = from + count - last * stride;
    if (inner && left < stride) {
      parts.push(...at(last, last + 1, split(0, left, k + 1)));
      high--;
    }
    if (high > low) parts.push(...at(Math.max(low, 0), Math.min(high, size), [tail(k + 1)]));
    return parts.filter((range) => range[axis][0] < size && range[axis][1] > 0);
  };
  const tail = (k) => {
    const range = whole();
    for (const { axis } of axes.slice(0, k)) range[axis] = [0, 1];
    return range;
  };
  const fixed = new Set(axes.map((a) => a.axis));
  return split(begin, length, 0).map((range) => range.map((r, axis) => (fixed.has(axis) ? r : [0, shape[axis]])));
}

// Ranges of a box {offset, length, levels: [[count, stride], ...]} of bytes, offsets counting from the buffer's begin.
export function rangesOfBox({ offset, length, levels }, tensor) {
  const axes = ordered(tensor);
  const element = (bytes) => Math.floor(bytes / tensor.item);
  const begin = element(offset - tensor.offset);
  const run = Math.max(Math.ceil(length / tensor.item), 1);
  const repeats = levels.filter(([count]) => count > 1).map(([count, stride]) => [count, element(stride)]);
  const expand = (from, k) => {
    if (k < 0) return rangesOfRun(from, run, axes, tensor.shape);
    const [count, stride] = repeats[k];
    const inner = expand(from, k - 1);
    const along = axes.find((a) => a.stride === stride);
    const fits = ([low, high], size) => high - low === 1 && low + count <= size;
    if (along && inner.length && inner.every((range) => fits(range[along.axis], along.size))) {
      return inner.map((range) => range.map((r, a) => (a === along.axis ? [r[0], r[0] + count] : r)));
    }
    const all = [];
    for (let i = 0; i < count && all.length < MOST_RANGES; i++) all.push(...expand(from + i * stride, k - 1));
    return all;
  };
  return expand(begin, repeats.length - 1);
}

// The smallest range around several, per axis; null around none.
export function hull(ranges) {
  if (!ranges.length) return null;
  return ranges[0].map((_, axis) => [
    Math.min(...ranges.map((r) => r[axis][0])),
    Math.max(...ranges.map((r) => r[axis][1])),
  ]);
}

// Shares, 0 to 1, of the elements behind each cell of a picture of two axes that the ranges hold; a range that holds
// part of a cell counts as much. `step` elements make a cell.
export function cellsOf(ranges, shape, [down, across]) {
  const step = [down, across].map((axis) => Math.ceil(shape[axis] / MOST_CELLS));
  const [high, wide] = [down, across].map((axis, k) => Math.ceil(shape[axis] / step[k]));
  const sums = new Float64Array((high + 1) * (wide + 1));
  const behind = shape.reduce((n, size, axis) => (axis === down || axis === across ? n : n * size), 1);
  for (const range of ranges) {
    const weight = range.reduce((n, [a, b], axis) => (axis === down || axis === across ? n : n * (b - a)), 1) / behind;
    const [y0, y1] = [Math.floor(range[down][0] / step[0]), Math.ceil(range[down][1] / step[0])];
    const [x0, x1] = [Math.floor(range[across][0] / step[1]), Math.ceil(range[across][1] / step[1])];
    sums[y0 * (wide + 1) + x0] += weight;
    sums[y0 * (wide + 1) + x1] -= weight;
    sums[y1 * (wide + 1) + x0] -= weight;
    sums[y1 * (wide + 1) + x1] += weight;
  }
  for (let y = 0; y <= high; y++) {
    for (let x = 1; x <= wide; x++) sums[y * (wide + 1) + x] += sums[y * (wide + 1) + x - 1];
  }
  const share = new Float32Array(high * wide);
  for (let x = 0; x < wide; x++) {
    let sum = 0;
    for (let y = 0; y < high; y++) {
      sum += sums[y * (wide + 1) + x];
      share[y * wide + x] = sum < 1e-9 ? 0 : Math.min(sum, 1);
    }
  }
  return { share, high, wide, step };
}
