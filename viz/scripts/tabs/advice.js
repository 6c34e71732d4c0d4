// The card that the page opens with: what limits the program, what to do first, and times of schedules.

import { make } from "../canvas.js";
import { doc, duration, launchCount, pairAt } from "../data.js";
import { panels } from "../main.js";
import { select } from "../state.js";
import { svgOf } from "./gain.js";

const MOST_ADVICE = 6;

export function showAdvice() {
  const box = document.getElementById("advice");
  const { guidance } = doc;
  if (!guidance || !launchCount) return;
  box.hidden = false;
  const fold = make("button", "", { type: "button", id: "fold-advice", title: "Show or hide what to do first (h)" });
  fold.addEventListener("click", toggleAdvice);
  const { sentence } = guidance.verdict;
  box.replaceChildren(
    make("h2", [make("span", `${sentence[0].toUpperCase() + sentence.slice(1)}.`), fold]),
    make("ol", guidance.actions.slice(0, MOST_ADVICE).map(adviceRow)),
    schedulesTable(guidance.schedules),
  );
  foldAdvice(kept("advice") === "folded" || (kept("advice") === null && innerHeight < 700));
}

export function toggleAdvice() {
  const folded = !document.getElementById("advice").classList.contains("folded");
  keep("advice", folded ? "folded" : "open");
  foldAdvice(folded);
  for (const view of Object.values(panels)) view.resize();
}

function foldAdvice(folded) {
  const box = document.getElementById("advice");
  box.classList.toggle("folded", folded);
  const button = document.getElementById("fold-advice");
  if (!button) return;
  button.textContent = folded ? "what to do" : "hide";
  button.setAttribute("aria-expanded", String(!folded));
}

function adviceRow(action) {
  const most = action.basis === "at most" ? "at most " : "";
  const how = action.basis === "at most" ? "" : `${action.basis}; `;
  const copy = make("button", "copy", { type: "button", class: "copy", title: `Copy ${action.command}` });
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(action.command);
    copy.textContent = "copied";
  });
  const isCode = /^\S*[.(_]/.test(action.title); // the name of a function keeps its letters
  const title = isCode ? action.title : action.title[0].toUpperCase() + action.title.slice(1);
  const share = (100 * action.saves_share).toFixed(1);
  const beyond = action.beyond ? [make("span", ` beyond ${action.beyond}`, { class: "beyond" })] : [];
  const saves = make("span", [`saves ${most}${duration(action.saves_ns)}`, ...beyond, ` (${share}%)`], {
    class: "saves",
    title: action.beyond ? `beyond ${action.beyond}` : "",
  });
  const buttons = [copy];
  if (action.launches.length) {
    const show = make("button", "show", { type: "button", class: "copy", title: "Show these launches" });
    const pair = action.launches.slice(0, 2);
    show.addEventListener("click", () =>
      select(pairAt.has(pair.join(",")) ? { pair } : { launch: action.launches[0] }),
    );
    buttons.push(show);
  }
  const summary = make("summary", [
    make("span", title, { class: "what" }),
    saves,
    make("code", action.command, { title: action.command }),
    ...buttons,
  ]);
  return make("li", [make("details", [summary, make("p", `${how}${action.effort} of work: ${action.reason}.`)])]);
}

function schedulesTable(schedules) {
  const longest = Math.max(...schedules.map((row) => row.time_ns));
  return make("table", [
    make(
      "tbody",
      schedules.map((row) => {
        const svg = svgOf("svg", { viewBox: "0 0 90 9", "aria-hidden": "true" });
        svg.append(svgOf("rect", { width: Math.max((90 * row.time_ns) / longest, 1), height: 9 }));
        const saves =
          row.name === "recorded"
            ? ""
            : `${row.saves_share < 0 ? "+" : "\u2212"}${Math.abs(100 * row.saves_share).toFixed(1)}%`;
        return make(
          "tr",
          [
            make("th", row.label, { scope: "row", title: row.label }),
            make("td", duration(row.time_ns)),
            make("td", saves),
            make("td", [svg]),
          ],
          { class: row.name },
        );
      }),
    ),
  ]);
}

// What a reader chose stays chosen after a reload, where the browser lets a page keep anything.
export function kept(name) {
  try {
    return localStorage.getItem(`tileprof.${name}`);
  } catch {
    return null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(`tileprof.${name}`, value);
  } catch {
    /* a page that may keep nothing forgets */
  }
}
