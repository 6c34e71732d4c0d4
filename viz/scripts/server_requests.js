// What a served page has beyond one in a file: whole relations, lanes and grids, and any scheduler with its options, on
// demand.

import { make } from "./canvas.js";
import { boxOf, doc, gridOf, laneOf, launchCount, launches, served, unpack } from "./data.js";
import { changed, state } from "./state.js";
import { chooseBeside } from "./tabs/gain.js";
import { fillBeside, scheduleLanes } from "./tabs/simulated_lanes.js";
import { runKey, whatIf } from "./tabs/what_if.js";

let numbersOfBlocks;

async function askServer(what, of) {
  const answer = await fetch(`${what}?of=${encodeURIComponent(of)}`).catch(() => {
    throw new Error("the server has ended (start it again: tileprof view --serve)");
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// A line of fields; what `ask` cannot do is said beside them.
function askingForm(fields, label, ask) {
  const says = make("span", "", { class: "soft", role: "status" });
  const form = make("form", [
    ...fields.flatMap((f) => [f, document.createTextNode(" ")]),
    make("button", label, { type: "submit" }),
    document.createTextNode(" "),
    says,
  ]);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    says.textContent = "…";
    try {
      await ask();
      changed();
    } catch (error) {
      says.textContent = error.message;
    }
  });
  return form;
}

const simulateAndAdd = async (text) => addSchedule(await askServer("simulate", text));

function addSchedule(schedule) {
  if (doc.schedules.some((s) => s.name === schedule.name)) return;
  doc.schedules.push(schedule);
  scheduleLanes.push(schedule.lanes);
  fillBeside();
}

function placeTheRest(places, tables) {
  const placeOfFootprint = new Map();
  for (let i = 0; i < launchCount; i++) {
    if (places[i] >= 0) continue;
    const footprint = launches.footprint[i];
    if (!placeOfFootprint.has(footprint)) placeOfFootprint.set(footprint, tables.push({}) - 1);
    places[i] = placeOfFootprint.get(footprint);
  }
}

// Makes the page that this script is in one that may ask its server.
export function serve() {
  numbersOfBlocks = unpack(doc.block_numbers); // not awaited here: the views draw meanwhile
  served.block = async (i) => askServer("block", (await numbersOfBlocks)[i]);
  served.lanes = (i) => askServer("lanes", laneOf.indexOf(i));
  served.grid = (i) => askServer("grid", gridOf.indexOf(i));
  served.variant = (text) => askServer("variant", text);
  served.size = (text) => askServer("size", text);

  served.boxes = (i) => askServer("boxes", boxOf.indexOf(i));
  // What the file had no room for gets places of its own, to be asked for.
  placeTheRest(gridOf, doc.grids);
  placeTheRest(boxOf, doc.boxes);

  served.runner = () => {
    const box = make("input", "", {
      type: "text",
      placeholder: "scheduler:option=value,…   for example list",
      "aria-label": "A scheduler and its options",
      id: "wanted",
      size: 38,
    });
    return askingForm([box], "Simulate", () => simulateAndAdd(box.value.trim()));
  };

  // The scheduler with the options of the what-if view, beside the recorded timeline; only the recorded GPU has its
  // rows there.
  served.show = () =>
    askingForm([], "Show in the timeline", async () => {
      const text = runKey(whatIf).split("@")[0];
      await simulateAndAdd(text);
      state.beside = text;
    });

  // A scheduler that the address bar names is run again after a reload.
  served.besides = async (text) => {
    try {
      await simulateAndAdd(text);
      chooseBeside(text);
    } catch (error) {
      served.problem = `${text}: ${error.message}`;
      changed(); // the address names nothing: it is written again
    }
  };
}
