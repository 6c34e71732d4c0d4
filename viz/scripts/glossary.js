// Words of the page, explained at the place: a button beside a word says it in a line, and shows all that belong there.

import { icon, make } from "./canvas.js";

export const ABOUT = {
  stream: "one launch after the other, each with a launch gap",
  graph: "the launches of each stream in one CUDA graph: shorter gaps",
  pdl: "programmatic dependent launch: the next launch's tiles are on the SMs early and wait for the whole launch",
  streams: "independent launches in several streams",
  "acs-sw": "ACS in software: a window of launches, independent ones together",
  "acs-hw": "ACS in hardware: a window of launches, independent ones together",
  cusync: "cuSync: tiles wait for tiles through semaphores",
  dataflow: "each tile is dispatched when the tiles it needs have ended",
  list: "greedy, free launches: a tile is dispatched when its parents have ended",
  persistent: "one kernel for the whole program, whose workers have static lists of tiles",
  "persistent-dynamic": "one kernel for the whole program, whose tiles are assigned on the GPU",
  inline: "a persistent kernel whose workers run the tiles that they have made ready, or spawn grids for them",
  ccks: "CCKS: a persistent kernel whose tiles the CPU assigns",
  blockmaestro: "BlockMaestro: kernels launched early, whose blocks a hardware scheduler delays",
  wireframe: "Wireframe: a task graph in hardware with room for some of its nodes",
  "dataflow-bloom": "dataflow, its dependencies kept in a Bloom filter",
};

const WORDS = {
  tightness:
    "edges of the pair over the edges of the smallest boxes around each tile's parents: 1 where the parents are boxes",
  "start early":
    "share of the consumer's tiles whose producers all end before the producer launch does, in stream order",
  "one wave":
    "the producer's tiles run side by side and end together: no consumer tile can start early, and what overlap " +
    "gains is the launch gap and the slots that the wave leaves idle",
  "gain each": "recorded time of two launches and the gap between them, minus the bound on both; for one copy",
  "gain in all": "the same for all copies of a repeated layer together",
  exact: "every byte that a tile touches was observed or follows from the kernel",
  inferred: "derived from other accesses, not observed",
  conservative: "a superset: the exact accesses of the kernel are unknown, so that some dependencies may not exist",
  wave: "as many tiles as the GPU holds at a time; the last wave of a launch is often partly empty",
  slot: "room for one tile on an SM",
  bound: "no schedule is faster, under the assumptions that tileprof report prints",
  "list schedule": ABOUT.list,
  "poll (poll_ns)": "time from a tile's post to the tile that polls for it",
  "post (post_ns)": "time that a tile needs to post that it has ended, and to check its first semaphore",
  inside: "where a tile waits for its parents: 0: at its entry; 1: where their bytes are needed; 2: the faster of both",
};

const SETS = {
  accesses: ["exact", "inferred", "conservative"],
  pairs: ["start early", "one wave", "gain each", "gain in all"],
  pair: ["tightness", "start early", "one wave", "conservative"],
  schedulers: ["bound", "slot", "wave", ...Object.keys(ABOUT)],
  options: ["post (post_ns)", "poll (poll_ns)", "inside", "list schedule"],
};

const meaning = (word) => WORDS[word] ?? ABOUT[word];

// A button that explains the words of a set; its tooltip has the first of them.
export function info(set) {
  const words = SETS[set];
  const title = `${words[0]}: ${meaning(words[0])}`;
  const button = make("button", [icon("M7 6.5v4M7 3.6v.2M7 1a6 6 0 1 0 .01 0z")], {
    type: "button",
    class: "info",
    title,
    "aria-label": `What these words mean: ${words.slice(0, 3).join(", ")}`,
  });
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    showWords("Words", wordList(words));
  });
  return button;
}

export const allWords = () => wordList([...Object.keys(WORDS), ...Object.keys(ABOUT)]);

const wordList = (words) =>
  make(
    "dl",
    words.flatMap((word) => [make("dt", word), make("dd", meaning(word))]),
    { class: "words" },
  );

export function showWords(title, content, dialog = document.getElementById("words")) {
  const close = make("button", "Close", { type: "button" });
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(make("h2", title), content, close);
  dialog.showModal();
}
