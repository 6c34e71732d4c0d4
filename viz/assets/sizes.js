// View 5: what if the GPU had another size. A table worked out beforehand, by slider.

const sizes = { sms: null, occupancy: 0 }; // the chosen row of the table
const LINES = { stream_ns: ["stream order", "RAW", []], graph_ns: ["in a CUDA graph", "WAR", [7, 3]], list_ns: ["list schedule, free launches", "free", [2, 3]] }; // words, ink, dashes

const countsOf = (name) => [...new Set(doc.sizes.map((s) => s[name]))].sort((a, b) => a - b);
const sizeAt = (sms, occupancy) => doc.sizes.find((s) => s.sms === sms && s.occupancy === occupancy);
const occupancyWords = (n) => (n ? `${n} ${n === 1 ? "block" : "blocks"}` : "as recorded");

function showSizes() {
  if (state.tab !== "sizes") return;
  const box = document.getElementById("what-if");
  if (!doc.sizes.length) {
    document.getElementById("sizes-says").textContent = "";
    const words = launchCount ? "This page holds no table of other sizes: the program is too large for one, or --quick was given. `tileprof simulate --sms` works one out." : "This trace holds no launches.";
    return box.replaceChildren(make("p", words));
  }
  const [sms, occupancies] = [countsOf("sms"), countsOf("occupancy")];
  sizes.sms ??= sms.includes(doc.summary.sms) ? doc.summary.sms : sms[0];
  document.getElementById("sizes-says").textContent = "tile times as recorded, whatever runs beside them";
  box.replaceChildren(
    make("div", [slider("SMs", "sms", sms, String), slider("resident blocks an SM", "occupancy", occupancies, occupancyWords)], { class: "sliders" }),
    ...(served.sizer ? [served.sizer()] : []), readout(), sizePlot(sms), sizeKey(),
  );
}

function slider(label, name, values, words) {
  const input = make("input", "", { type: "range", min: 0, max: values.length - 1, step: 1, id: "slide-" + name, "aria-valuetext": words(sizes[name]) });
  input.value = values.indexOf(sizes[name]);
  input.disabled = values.length < 2;
  input.addEventListener("input", () => {
    sizes[name] = values[input.value];
    if (!sizeAt(sizes.sms, sizes.occupancy)) Object.assign(sizes, doc.sizes.find((s) => s[name] === sizes[name]));
    showSizes();
    document.getElementById("slide-" + name).focus({ preventScroll: true });
  });
  return make("label", [document.createTextNode(label + " "), input, document.createTextNode(" "), make("output", words(sizes[name]), { for: "slide-" + name })]);
}

function readout() {
  const here = sizeAt(sizes.sms, sizes.occupancy);
  const base = sizeAt(doc.summary.sms, 0) ?? here;
  const longest = Math.max(...doc.sizes.flatMap((s) => Object.keys(LINES).map((key) => s[key] ?? 0)));
  const rows = Object.entries(LINES).flatMap(([key, [name, colour]]) => here[key] === null ? [] : [
    make("span", name), make("span", [stackedBar([[INK[colour], here[key]]], 0, [base[key]], longest)], { title: `┆ as recorded: ${duration(base[key])}` }),
    make("span", duration(here[key]), { class: "number" }), make("span", signedShare(here[key] / base[key] - 1), { class: "number soft", title: "against the recorded size" }),
  ]);
  return make("div", rows, { class: "rows", id: "size-rows" });
}

// Time over the number of SMs at the chosen occupancy.
function sizePlot(sms) {
  const [left, right, top, bottom, width, height] = [56, 700, 10, 160, 720, 190];
  const most = Math.max(...doc.sizes.flatMap((s) => Object.keys(LINES).map((key) => s[key] ?? 0))) * 1.05;
  const x = (n) => left + ((right - left) * (n - sms[0])) / Math.max(sms.at(-1) - sms[0], 1);
  const y = (ns) => bottom - ((bottom - top) * ns) / most;
  const svg = svgOf("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Time over the number of SMs" });
  const say = (words, at, to, anchor) => svg.append(Object.assign(svgOf("text", { x: at, y: to, "text-anchor": anchor }), { textContent: words }));
  const step = niceStep(most / 4);
  for (let ns = 0; ns <= most; ns += step) {
    svg.append(svgOf("line", { x1: left, x2: right, y1: y(ns), y2: y(ns), stroke: INK.line }));
    say(tickTime(ns, step, most), left - 6, y(ns) + 4, "end");
  }
  for (const n of sms) say(String(n), x(n), bottom + 16, "middle");
  say("SMs", right, bottom + 29, "end");
  svg.append(svgOf("line", { x1: x(sizes.sms), x2: x(sizes.sms), y1: top, y2: bottom, stroke: INK.focus }));
  for (const [key, [, colour, dash]] of Object.entries(LINES)) {
    const points = sms.map((n) => [n, sizeAt(n, sizes.occupancy)?.[key]]).filter(([, ns]) => Number.isFinite(ns));
    svg.append(svgOf("polyline", { points: points.map(([n, ns]) => `${x(n)},${y(ns)}`).join(" "), fill: "none", stroke: INK[colour], "stroke-width": 2, "stroke-dasharray": dash.join(" ") }));
    for (const [n, ns] of points) svg.append(svgOf("circle", { cx: x(n), cy: y(ns), r: n === sizes.sms ? 4.5 : 2.5, fill: INK[colour] }));
  }
  return svg;
}

function sizeKey() {
  return make("div", Object.values(LINES).map(([name, colour, dash]) => {
    const svg = svgOf("svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" });
    svg.append(svgOf("line", { x1: 1, x2: 23, y1: 4, y2: 4, stroke: INK[colour], "stroke-width": 3, "stroke-dasharray": dash.join(" ") }));
    return make("span", [svg, document.createTextNode(name)]);
  }), { class: "key" });
}
