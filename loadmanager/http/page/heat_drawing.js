// The heat map on its canvas: time from left to right, a row for each broker or slice of hashes.

import { contextOf } from "./bars.js";
import { clock, minute } from "./format.js";
import { colours } from "./theme.js";

export const LANE = 40; // above the map: who began to lead, and below that how many moves
const LABELS = 14; // the part of it for labels
export const AXIS = 20; // below it
const UNKNOWN = 255;
const MOST_MARKS = 600;
const STEPS_S = [5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400];

// A timeline as it comes, with its `cells` as bytes, and without the columns before anything was known.
export function read(timeline) {
  const bytes = Uint8Array.from(atob(timeline.cells), (each) => each.charCodeAt(0));
  const { columns, stepMs } = timeline;
  const first = columnOfFirst(bytes, columns);
  if (first === 0 || first === columns) return { ...timeline, cells: bytes };
  const from = timeline.from + first * stepMs;
  const after = (moments) => moments.filter(([ms]) => ms >= from);
  const cells = bytes.filter((_, n) => n % columns >= first);
  const [moves, splits, leaders] = [timeline.moves, timeline.splits, timeline.leaders].map(after);
  return { ...timeline, from, columns: columns - first, cells, moves, splits, leaders };
}

function columnOfFirst(bytes, columns) {
  let first = columns;
  bytes.forEach((value, n) => {
    if (value !== UNKNOWN && n % columns < first) first = n % columns;
  });
  return first;
}

// Per cent; null for what is unknown.
export function cellAt({ cells, columns }, row, column) {
  const value = cells[row * columns + column];
  return value === UNKNOWN ? null : value;
}

// Where a moment is, in pixels, and back.
export function scaleOf(timeline, width) {
  const span = timeline.stepMs * timeline.columns;
  return {
    x: (ms) => ((ms - timeline.from) / span) * width,
    ms: (x) => timeline.from + (x / width) * span,
    column: (x) => Math.min(timeline.columns - 1, Math.max(0, Math.floor((x / width) * timeline.columns))),
  };
}

function channels(colour) {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

// 256 colours between those of the style sheet; the upper half of the scale has the greater part of them.
function rampOf({ cold, warm, hotter, scorching }) {
  const stops = [
    [0, cold],
    [50, warm],
    [75, hotter],
    [100, scorching],
  ].map(([at, colour]) => [at, channels(colour)]);
  return Array.from({ length: 256 }, (_, value) => {
    const next = Math.max(
      1,
      stops.findIndex(([at]) => at >= Math.min(value, 100)),
    );
    const [[low, from], [high, to]] = stops.slice(next - 1, next + 1);
    const share = (Math.min(value, 100) - low) / (high - low);
    return from.map((each, n) => Math.round(each + (to[n] - each) * share));
  });
}

// The cells, one pixel each, made anew only when they or the colours change.
export function imageOf(element, timeline) {
  const image = new ImageData(timeline.columns, Math.max(timeline.rows.length, 1));
  const ramp = rampOf(colours(element));
  timeline.cells.forEach((value, n) => {
    if (value !== UNKNOWN) image.data.set([...ramp[value], 255], 4 * n);
  });
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

export function draw(canvas, width, height, { timeline, image, selection, cursor }) {
  const context = contextOf(canvas, width, height);
  const colour = colours(canvas);
  const scale = scaleOf(timeline, width);
  const map = { top: LANE, height: height - LANE - AXIS, width };
  context.imageSmoothingEnabled = false;
  context.fillStyle = colour.sunken;
  context.fillRect(0, map.top, width, map.height);
  context.drawImage(image, 0, map.top, width, map.height);
  drawAxis(context, colour, scale, timeline, map);
  drawMoves(context, colour, scale, timeline, map);
  drawLeaders(context, colour, scale, timeline, map);
  if (selection) drawSelection(context, colour, scale, selection, map);
  if (cursor !== null) drawCursor(context, colour, timeline, cursor, map);
}

function drawAxis(context, colour, scale, timeline, map) {
  const spanS = (timeline.stepMs * timeline.columns) / 1000;
  const stepMs = 1000 * (STEPS_S.find((step) => (spanS / step) * 70 < map.width) ?? STEPS_S.at(-1));
  const label = stepMs < 60_000 ? clock : minute;
  const offset = new Date(timeline.from).getTimezoneOffset() * 60_000;
  context.fillStyle = colour.quiet;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  for (let ms = Math.ceil((timeline.from - offset) / stepMs) * stepMs + offset; scale.x(ms) < map.width; ms += stepMs) {
    context.fillRect(Math.round(scale.x(ms)), map.top + map.height, 1, 4);
    const x = scale.x(ms);
    if (x > 18 && x < map.width - 18) context.fillText(label(ms), x, map.top + map.height + 15);
  }
}

// Above the map how many there were in each column, and on a map of brokers where they went.
function drawMoves(context, colour, scale, timeline, map) {
  const counts = new Array(timeline.columns).fill(0);
  for (const [ms] of timeline.moves) counts[scale.column(scale.x(ms))] += 1;
  const most = Math.max(...counts, 1);
  context.fillStyle = colour.bar;
  counts.forEach((count, column) => {
    if (count) {
      const height = Math.max(2, ((LANE - LABELS - 8) * count) / most);
      context.fillRect(
        (column * map.width) / timeline.columns,
        LANE - 2 - height,
        Math.max(1.5, map.width / timeline.columns - 0.5),
        height,
      );
    }
  });
  context.fillStyle = colour.ink;
  for (const [ms] of timeline.splits) diamond(context, scale.x(ms), LABELS + 5);
  if (timeline.of !== "brokers" || timeline.moves.length > MOST_MARKS) return;
  const y = (name) => {
    const row = name ? rowOf(timeline, name) : -1;
    return row < 0 ? undefined : map.top + ((row + 0.5) * map.height) / timeline.rows.length;
  };
  for (const [ms, , source, destination] of timeline.moves)
    drawMove(context, colour, scale.x(ms), y(source), y(destination));
}

// The row that a name is in, or shares: rows are in the order of names, and labelled with the first and the last. -1: none.
export function rowOf({ rows }, name) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].split(" … ")[0] <= name) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// A ring where the bundle left, a point where it went.
function drawMove(context, colour, x, from, to) {
  context.strokeStyle = context.fillStyle = colour.mark;
  context.lineWidth = 1;
  if (from !== undefined) {
    context.beginPath();
    context.arc(x, from, 2.5, 0, 2 * Math.PI);
    context.stroke();
  }
  if (to !== undefined) {
    context.beginPath();
    context.arc(x, to, 2.5, 0, 2 * Math.PI);
    context.fill();
  }
}

function diamond(context, x, y) {
  context.beginPath();
  context.moveTo(x, y - 4);
  context.lineTo(x + 4, y);
  context.lineTo(x, y + 4);
  context.lineTo(x - 4, y);
  context.fill();
}

function drawLeaders(context, colour, scale, timeline, map) {
  context.strokeStyle = colour.ink;
  context.fillStyle = colour.ink;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.setLineDash([3, 3]);
  const leaders = [...timeline.leaders].sort((a, b) => a[0] - b[0]);
  const lines = leaders.map(([ms]) => Math.round(scale.x(ms)) + 0.5);
  let used = 0; // where the last line or label ends
  leaders.forEach(([, , epoch], n) => {
    const x = lines[n];
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, map.top + map.height);
    context.stroke();
    const text = `epoch ${epoch}`;
    const { width } = context.measureText(text);
    const fits = x + 3 + width <= (lines[n + 1] ?? map.width);
    const at = fits ? x + 3 : x - 3 - width;
    if (at >= used) context.fillText(text, at, 10);
    used = fits ? at + width : x;
  });
  context.setLineDash([]);
}

function drawSelection(context, colour, scale, [from, until], map) {
  const left = scale.x(from);
  const right = scale.x(until);
  context.fillStyle = colour.veil;
  context.fillRect(0, map.top, Math.max(left, 0), map.height);
  context.fillRect(right, map.top, map.width - right, map.height);
  context.strokeStyle = colour.accent;
  context.lineWidth = 2;
  context.strokeRect(left, map.top, right - left, map.height);
}

function drawCursor(context, colour, timeline, cursor, map) {
  const step = map.width / timeline.columns;
  context.strokeStyle = colour.accent;
  context.lineWidth = 1;
  context.strokeRect(cursor * step, map.top, Math.max(step, 2), map.height);
}
