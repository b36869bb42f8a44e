// One bar a broker, on a canvas: a thousand of them are one drawing.

import { stateWords } from "./fleet_words.js";
import { percent } from "./format.js";
import { go } from "./route.js";
import { colours, palette } from "./theme.js";
import { html, useCell, useEffect, useRef, useState, useWidth } from "./ui.js";

const HEIGHT = 150;
const WIDEST = 44;
const FOOT = 4;

// The canvas in device pixels, ready to be drawn on in the page's own.
export function contextOf(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const scaleOf = (rows) => Math.max(108, ...rows.map((row) => Math.min(row.highest ?? 0, 400)));

function draw(canvas, width, rows, { mean, lowerBound, capacity, hot: hotFrom }) {
  const context = contextOf(canvas, width, HEIGHT);
  const { bar, hot, over, resting, ink, good } = colours(canvas);
  const top = scaleOf(rows);
  const y = (value) => HEIGHT - FOOT - ((HEIGHT - FOOT - 10) * value) / top;
  const step = Math.min(width / rows.length, WIDEST);
  rows.forEach((row, n) => {
    context.fillStyle = row.state !== "active" ? resting : row.highest > capacity ? over : row.highest > hotFrom ? hot : bar;
    const gap = step > 4 ? Math.min(3, step / 5) : 0;
    const height = Math.max(1, HEIGHT - FOOT - y(row.highest ?? 0));
    context.fillRect(n * step, HEIGHT - FOOT - height, Math.max(step - gap, 0.7), height);
  });
  line(context, width, y(capacity), over, []);
  if (mean !== null && mean !== undefined) line(context, width, y(mean), ink, [6, 4]);
  if (lowerBound !== null && lowerBound !== undefined) line(context, width, y(lowerBound), good, [2, 3]);
}

function line(context, width, y, colour, dash) {
  context.strokeStyle = colour;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(width, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

// `rows`: {id, highest, state}, in the order in which they are drawn.
export function Bars({ rows, lines, label }) {
  const box = useRef();
  const canvas = useRef();
  const width = useWidth(box);
  const colourTurn = useCell(palette);
  const [under, setUnder] = useState(null);
  useEffect(() => {
    if (!width || !rows.length) return undefined;
    const frame = requestAnimationFrame(() => draw(canvas.current, width, rows, lines));
    return () => cancelAnimationFrame(frame);
  }, [rows, width, lines.mean, lines.lowerBound, colourTurn]);
  const rowAt = (event) => rows[Math.floor(event.offsetX / Math.min(width / rows.length, WIDEST))] ?? null;
  return html`<div class="bars" ref=${box}>
    <canvas ref=${canvas} role="img" aria-label=${label} style=${{ width: `${width}px`, height: `${HEIGHT}px` }}
      onPointerMove=${(event) => setUnder(rowAt(event))} onPointerLeave=${() => setUnder(null)}
      onClick=${(event) => rowAt(event) && go("broker", [rowAt(event).id])}></canvas>
    <p class="legend" aria-hidden="true">
      ${under ? html`<strong>${under.id}</strong> ${sayBar(under)}` : "One bar a broker, in the order of the list"}</p>
  </div>`;
}

const sayBar = ({ highest, state }) => [percent(highest), stateWords(state)].filter(Boolean).join(", ");

// What the lines mean, here and in the list.
export const Lines = ({ lines }) => html`<p class="legend lines">
  <span class="key mean">mean ${percent(lines.mean)}</span>
  ${lines.lowerBound !== null && html`<span class="key bound">best possible ${percent(lines.lowerBound)}</span>`}
  <span class="key capacity">capacity 100 %</span></p>`;
