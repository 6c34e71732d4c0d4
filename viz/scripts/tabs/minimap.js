// A map of the whole launch graph in a corner, where the view shows only a part of it; a drag in it moves the view.

import { INK } from "../canvas.js";

const MARGIN = 8;
const MOST = { width: 150, height: 170, share: 0.25 }; // px; share: of the view's sides

// Where the map lies and its scale; null where the view shows the whole drawing.
export function mapOf(view, drawing) {
  if (!drawing?.nodes.length || !view.width) return null;
  const { x, y, kx } = view.view;
  const all =
    x >= -1 && y >= -1 && x + drawing.width * kx <= view.width + 1 && y + drawing.height * kx <= view.height + 1;
  if (all) return null;
  const wide = Math.min(MOST.width, view.width * MOST.share);
  const high = Math.min(MOST.height, view.height * MOST.share);
  const k = Math.min(wide / drawing.width, high / drawing.height);
  const [w, h] = [Math.max(drawing.width * k, 24), Math.max(drawing.height * k, 24)];
  return { x: view.width - w - MARGIN, y: view.height - h - MARGIN, w, h, k };
}

export function drawMap(c, view, drawing) {
  const map = mapOf(view, drawing);
  if (!map) return;
  c.save();
  c.beginPath();
  c.rect(map.x, map.y, map.w, map.h);
  c.fillStyle = INK.page;
  c.strokeStyle = INK.line;
  c.lineWidth = 1;
  c.fill();
  c.stroke();
  c.clip();
  c.fillStyle = INK.box;
  for (const b of drawing.boxes) c.fillRect(map.x + b.ax * map.k, map.y + b.ay * map.k, b.w * map.k, b.h * map.k);
  c.fillStyle = INK.excess;
  for (const n of drawing.nodes) {
    c.fillRect(map.x + n.ax * map.k, map.y + n.ay * map.k, Math.max(n.w * map.k, 1), Math.max(n.h * map.k, 1));
  }
  const { x, y, kx } = view.view;
  const k = map.k / kx;
  c.strokeStyle = INK.focus;
  c.lineWidth = 1.5;
  c.strokeRect(map.x - x * k, map.y - y * k, view.width * k, view.height * k);
  c.restore();
}

// Moves the view so that the place under the pointer is in its middle; whether the pointer is on the map.
export function moveByMapOf(view, drawing, sx, sy) {
  const map = mapOf(view, drawing);
  if (!map || sx < map.x || sy < map.y || sx > map.x + map.w || sy > map.y + map.h) return false;
  const { kx } = view.view;
  view.view.x = view.width / 2 - ((sx - map.x) / map.k) * kx;
  view.view.y = view.height / 2 - ((sy - map.y) / map.k) * kx;
  view.moved();
  return true;
}
