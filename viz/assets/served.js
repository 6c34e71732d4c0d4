// What a served page has beyond one in a file: whole relations, and any scheduler with its parameters, on demand.

const numbersOfBlocks = unpack(doc.block_numbers); // not awaited here: the views exist by now, and draw once all parts have run
const fetchedBlocks = new Map();

async function askServer(what, of) {
  const answer = await fetch(`${what}?of=${encodeURIComponent(of)}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

served.block = (i) => {
  if (!fetchedBlocks.has(i)) fetchedBlocks.set(i, numbersOfBlocks.then((numbers) => askServer("block", numbers[i])).then(unpackTable));
  return fetchedBlocks.get(i);
};

// A line of fields; what `ask` cannot do is said beside them.
function askingForm(fields, label, ask) {
  const says = make("span", "", { class: "soft", role: "status" });
  const form = make("form", [...fields.flatMap((f) => [f, document.createTextNode(" ")]), make("button", label, { type: "submit" }), document.createTextNode(" "), says]);
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

served.runner = () => {
  const box = make("input", "", { type: "text", placeholder: "scheduler:option=value,…   for example list", "aria-label": "A scheduler and its options", id: "wanted", size: 38 });
  return askingForm([box], "Simulate", async () => addSchedule(await askServer("simulate", box.value.trim())));
};

served.sizer = () => {
  const field = (id, label, value) => make("input", "", { type: "number", min: id === "wanted-sms" ? 1 : 0, value, id, "aria-label": label, title: label });
  const fields = [field("wanted-sms", "SMs", sizes.sms), field("wanted-blocks", "resident blocks an SM; 0: as recorded", sizes.occupancy)];
  return askingForm(fields, "Another size", async () => {
    const [sms, occupancy] = fields.map((f) => Number(f.value));
    if (!sizeAt(sms, occupancy)) doc.sizes.push(await askServer("size", `${sms},${occupancy}`));
    Object.assign(sizes, { sms, occupancy });
  });
};

function addSchedule(schedule) {
  if (doc.schedules.some((s) => s.name === schedule.name)) return;
  doc.schedules.push(schedule);
  scheduleLanes.push(schedule.lanes);
  fillBeside();
}
