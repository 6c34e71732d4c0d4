// Modules over time: for each level of the modules' paths, the stretches of launches inside of one module.

import { launchCount, launches, text } from "../data.js";

// "model.layers.3.self_attn" has the levels model, layers.3 and self_attn: a number belongs to the name before it.
function namesOf(path) {
  const names = [];
  for (const part of path ? path.split(".") : []) {
    if (/^\d+$/.test(part) && names.length) names[names.length - 1] += `.${part}`;
    else names.push(part);
  }
  return names;
}

// Stretches { name, path, first, last } of launches for each level, the outermost level first.
export const moduleLevels = (() => {
  const levels = [];
  let before = [];
  for (let i = 0; i < launchCount; i++) {
    const names = namesOf(text(launches.module, i));
    let shared = 0;
    while (shared < names.length && names[shared] === before[shared]) shared++;
    names.forEach((name, level) => {
      if (level < shared) levels[level].at(-1).last = i;
      else {
        levels[level] ??= [];
        levels[level].push({ name, path: names.slice(0, level + 1).join("."), first: i, last: i });
      }
    });
    before = names;
  }
  // A module around everything tells nothing.
  while (
    levels.length > 1 &&
    levels[0].length === 1 &&
    levels[0][0].first === 0 &&
    levels[0][0].last === launchCount - 1
  )
    levels.shift();
  return levels;
})();

const FILLS = 0.9; // of a window: the name of such a module tells little

// As many levels as there are rows: from the top go those of which one stretch fills the window from `from` to `to`.
export function levelsIn(rows, from, to, startOf, endOf) {
  const fills = ({ first, last }) => Math.min(endOf(last), to) - Math.max(startOf(first), from) >= FILLS * (to - from);
  let skipped = 0;
  while (moduleLevels.length - skipped > rows && moduleLevels[skipped].some(fills)) skipped++;
  return moduleLevels.slice(skipped, skipped + rows);
}
