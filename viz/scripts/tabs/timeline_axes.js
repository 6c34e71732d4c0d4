// Beside the lanes of the timeline: the axis of time, SMs or shares of the GPU's slots, and the kept moment.

import { FONT, INK, niceStep } from "../canvas.js";
import { tickTime } from "../data.js";
import { state } from "../state.js";
import { aggregation, lanesView, rowCount, simulatedRow } from "./timeline.js";

export function drawLaneAxes(c) {
  const { view: v, margin: m, width, height } = lanesView;
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.textBaseline = "alphabetic";
  c.textAlign = "left";
  const step = niceStep(90 / v.kx);
  c.beginPath();
  for (let t = Math.ceil(Math.max(-v.x / v.kx, 0) / step) * step; m.left + v.x + t * v.kx < width; t += step) {
    const x = m.left + v.x + t * v.kx;
    c.moveTo(x, 0);
    c.lineTo(x, 17);
    const words = tickTime(t, step, (width - m.left - v.x) / v.kx);
    if (x + 4 + c.measureText(words).width <= width) c.fillText(words, x + 4, 13);
  }
  c.stroke();
  c.font = `11px ${FONT}`;
  c.fillStyle = INK.soft;
  c.textAlign = "right";
  c.textBaseline = "middle";
  const rows = Math.max(niceStep(22 / v.ky), 1);
  const below = state.beside ? lanesView.toScreen(0, rowCount)[1] : height;
  for (const first of state.beside ? [0, simulatedRow()] : [0]) {
    if (first && aggregation.simulated) {
      drawShareAxis(c, first, height);
      continue;
    }
    for (let row = 0; row < rowCount; row += rows) {
      const y = lanesView.toScreen(0, first + row + 0.5)[1];
      if (y > m.top + 4 && y < (first ? height : below) - 4) c.fillText(`SM ${row}`, m.left - 7, y);
    }
  }
  if (state.time === null) return;
  const x = lanesView.toScreen(state.time, 0)[0];
  if (x < m.left) return;
  c.fillStyle = INK.arrow;
  c.beginPath();
  c.moveTo(x, m.top);
  c.lineTo(x - 5, m.top - 8);
  c.lineTo(x + 5, m.top - 8);
  c.fill();
}

// Where bars stand for the whole GPU: how many of its slots are busy, from the bottom up.
function drawShareAxis(c, first, end) {
  const { margin: m } = lanesView;
  const roomy = rowCount * lanesView.view.ky > 90;
  for (const share of roomy ? [0, 50, 100] : [0, 100]) {
    const y = lanesView.toScreen(0, first + rowCount * (1 - share / 100))[1];
    if (y < m.top - 2 || y > end + 2) continue;
    c.textBaseline = share === 0 ? "bottom" : share === 100 ? "top" : "middle";
    c.fillText(`${share}%`, m.left - 7, y);
  }
  const y = lanesView.toScreen(0, first + rowCount * 0.75)[1];
  if (!roomy || y < m.top || y > end) return;
  c.textBaseline = "middle";
  c.fillText("busy", m.left - 7, y - 6);
  c.fillText("slots", m.left - 7, y + 6);
}
