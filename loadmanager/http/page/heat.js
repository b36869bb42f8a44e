// The heat map: brokers, or bundles by hash, over time; what was moved, split and led; a brush that selects decisions.

import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { bytesPerS, clock, duration, moment, percent, shortNames, whole } from "./format.js";
import { AXIS, LANE, cellAt, draw, imageOf, read, scaleOf } from "./heat_drawing.js";
import { DecisionList } from "./decisions.js";
import { connection } from "./live.js";
import { BrokerLink, Choice, SubjectLink } from "./parts.js";
import { adjust, route } from "./route.js";
import { palette } from "./theme.js";
import { html, useCell, useEffect, useMemo, useRef, useState, useWidth } from "./ui.js";

const KINDS = [
  ["brokers", "Brokers"],
  ["bundles", "Bundles by hash"],
];
// In seconds.
const RANGES = [
  ["900", "15 min"],
  ["3600", "1 h"],
  ["21600", "6 h"],
  ["86400", "24 h"],
];
const COLUMNS = 240;
const ROWS = 200;
const ROW_HEIGHT = [3, 22]; // at the least and at the most
const LABEL_HEIGHT = 14;
const HEIGHTS = [180, 480];
const NARROW = 560; // on a phone the map is half as high

// `since` and `until` of the address are the selected window; `range` is how many seconds the map goes back from `end`,
// which is there while something is selected, or from now on.
export function HeatView() {
  const { of = "brokers", range = "3600", end, since, until } = useCell(route).query;
  const seconds = Number(range) || 3600;
  const turn = useTurn(end ? null : seconds);
  const { answer, problem } = useAnswer(
    async (signal) => {
      const till = end ? Number(end) : Date.now();
      const load = async (since) =>
        read(await get(`${OURS}/timeline`, { of, since, until: till, columns: COLUMNS, rows: ROWS }, signal));
      const all = await load(till - 1000 * seconds);
      // A node that has just started knows less than it is asked for: that part in finer columns.
      return all.columns < COLUMNS / 2 && all.from < till ? load(all.from) : all;
    },
    [of, range, end, turn],
  );
  const selection = since && until ? [Number(since), Number(until)] : null;
  const select = (window) => adjust({ since: window?.[0], until: window?.[1], end: window && (end ?? endOf(answer)) });
  const ask = (query) => adjust({ ...query, since: undefined, until: undefined, end: undefined });
  return html`<h1>Heat map</h1>
    <div class="tools">
      <${Choice} label="Of" value=${of} options=${KINDS} choose=${(value) => adjust({ of: value })} />
      <${Choice} label="Back" value=${String(seconds)} options=${RANGES} choose=${(value) => ask({ range: value })} />
      <span class="quiet">${end ? `up to ${moment(Number(end))}` : "up to now"}</span>
      ${selection && html`<button onClick=${() => select(null)}>Clear the selection</button>`}
    </div>
    <${Problem} problem=${problem} />
    ${answer && html`<${Map} timeline=${answer} selection=${selection} select=${select} />`}
    ${!answer && !problem && html`<p class="quiet">Loading…</p>`}
    <section aria-label="Decisions">
      <h2>Decisions${selection && ` from ${moment(selection[0])} to ${clock(selection[1])}`}</h2>
      ${!selection && html`<p class="quiet">Drag over the map to see the decisions of a time range.</p>`}
      <${DecisionList} window=${selection} />
    </section>`;
}

const endOf = ({ from, stepMs, columns }) => from + stepMs * columns;

// Counts how often a new column has become due since the node was heard, which says something every 10 s.
function useTurn(seconds) {
  const { heardAt } = useCell(connection);
  const stepMs = Math.max((1000 * seconds) / COLUMNS, 10_000);
  return seconds === null ? -1 : Math.floor((heardAt ?? 0) / stepMs);
}

function Map({ timeline, selection, select }) {
  const box = useRef();
  const canvas = useRef();
  const width = useWidth(box);
  const colourTurn = useCell(palette);
  const [cursor, setCursor] = useState(null);
  const [pointer, setPointer] = useState(null);
  const [draft, setDraft] = useState(null);
  const height = LANE + AXIS + heightOf(timeline.rows.length) / (width < NARROW ? 2 : 1);
  const image = useMemo(() => imageOf(document.documentElement, timeline), [timeline, colourTurn]);
  const shown = draft ?? selection;
  useEffect(() => {
    if (!width) return undefined;
    const frame = requestAnimationFrame(() =>
      draw(canvas.current, width, height, { timeline, image, selection: shown, cursor }),
    );
    return () => cancelAnimationFrame(frame);
  }, [timeline, image, width, height, shown, cursor]);
  const scale = scaleOf(timeline, Math.max(width, 1));
  const brush = brushOf(timeline, scale, draft, setDraft, select);
  const moved = (event) => {
    setPointer(pointOf(event, timeline, scale, height));
    brush.move(event);
  };
  const on = {
    onKeyDown: (event) => moveCursor(event, timeline, cursor, setCursor, selection, select),
    onBlur: () => setCursor(null),
    onPointerDown: brush.down,
    onPointerMove: moved,
    onPointerUp: brush.up,
    onPointerCancel: () => setDraft(null),
    onPointerLeave: () => setPointer(null),
  };
  const said = shown && !pointer ? sayWindow(timeline, shown) : sayPoint(timeline, pointer, cursor);
  return html`<div class="map">
    <div class="plot">
      <${Labels} timeline=${timeline} height=${height - LANE - AXIS} />
      <div class="surface" ref=${box}>
        <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="heat map" aria-label=${labelOf(timeline)}
          aria-describedby="map-says" style=${{ width: `${width}px`, height: `${height}px` }} ...${on}></canvas>
      </div>
    </div>
    <p id="map-says" class="legend" aria-live="polite">${said}</p>
    <${Legend} timeline=${timeline} />
  </div>`;
}

const Legend = ({ timeline: { of, scale, movesOmitted } }) => html`<p class="legend quiet">
  <span class="key ramp">${of === "brokers" ? "0 – 100 % of the highest resource" : `0 – ${bytesPerS(scale)}`}</span>
  <span class="key moves">moves</span><span class="key splits">◆ splits</span><span class="key leads">leader</span>
  ${of === "brokers" && html`<span>○ left, ● went to</span>`}
  ${movesOmitted > 0 && html`<span>${whole(movesOmitted)} more moves are not marked</span>`}</p>`;

// The names of the rows, where there is room for them.
function Labels({ timeline: { of, rows }, height }) {
  const each = height / Math.max(rows.length, 1);
  const every = Math.ceil(LABEL_HEIGHT / each);
  if (of === "brokers" && every > 1) return null;
  const shortened = shortNames(rows);
  const label = (name, row) => html`<div title=${name} style=${{ height: `${each * Math.min(every, rows.length - row)}px` }}>
    ${of === "brokers" ? html`<${BrokerLink} name=${name}>${shortened[row]}<//>` : name.split("_")[0]}</div>`;
  return html`<div class="labels" style=${{ paddingTop: `${LANE}px` }}>
    ${rows.map((name, row) => row % every === 0 && label(name, row))}
  </div>`;
}

const within = (value, [least, most]) => Math.max(least, Math.min(most, value));
const heightOf = (rows) => within(rows * within(HEIGHTS[1] / Math.max(rows, 1), ROW_HEIGHT), HEIGHTS);

function labelOf(timeline) {
  const { of, sizes, from } = timeline;
  const count = sizes.reduce((sum, size) => sum + size, 0);
  return `${count} ${of} from ${clock(from)} to ${clock(endOf(timeline))}`;
}

function pointOf(event, timeline, scale, height) {
  const row = Math.floor(((event.offsetY - LANE) / (height - LANE - AXIS)) * timeline.rows.length);
  return { row, column: scale.column(event.offsetX) };
}

// What the pointer, or the cursor of the keyboard, is on.
function sayPoint(timeline, pointer, cursor) {
  const column = pointer?.column ?? cursor;
  if (column === null || column === undefined)
    return "Drag to select a time; with the keyboard: arrows, and Shift with arrows.";
  const from = timeline.from + column * timeline.stepMs;
  const moves = timeline.moves.filter(([ms]) => ms >= from && ms < from + timeline.stepMs);
  const tail = `${clock(from)}, ${duration(timeline.stepMs / 1000)}${moves.length ? `, ${moves.length} moves` : ""}`;
  const row = pointer?.row ?? hottestOf(timeline, column);
  if (timeline.rows[row] === undefined) return tail;
  const value = cellAt(timeline, row, column);
  return html`<${RowName} timeline=${timeline} row=${row} /> ${value === null ? "unknown" : sayValue(timeline, value)}${
    pointer ? "" : " is the hottest"
  }, ${tail}`;
}

// What a cell of so many per cent stands for.
const sayValue = ({ of, scale }, value) => (of === "brokers" ? percent(value) : bytesPerS((scale * value) / 100));

function RowName({ timeline: { rows, sizes }, row }) {
  const [name, size] = [rows[row], sizes[row]];
  if (size > 1) return html`<strong>${name}</strong> (the highest of ${whole(size)})`;
  return html`<strong><${SubjectLink} name=${name} /></strong>`;
}

function hottestOf(timeline, column) {
  let best = -1;
  timeline.rows.forEach((_, row) => {
    if ((cellAt(timeline, row, column) ?? -1) > (best < 0 ? -1 : cellAt(timeline, best, column))) best = row;
  });
  return best;
}

function sayWindow(timeline, [from, until]) {
  const moves = timeline.moves.filter(([ms]) => ms >= from && ms < until).length;
  return `${clock(from)} to ${clock(until)}, ${duration((until - from) / 1000)}: ${whole(moves)} moves`;
}

// Whole columns, in milliseconds.
function windowOf(timeline, a, b) {
  const [first, last] = a < b ? [a, b] : [b, a];
  return [timeline.from + first * timeline.stepMs, timeline.from + (last + 1) * timeline.stepMs];
}

function brushOf(timeline, scale, draft, setDraft, select) {
  const started = useRef(null);
  return {
    down(event) {
      event.currentTarget.setPointerCapture(event.pointerId);
      started.current = scale.column(event.offsetX);
    },
    move(event) {
      if (started.current !== null) setDraft(windowOf(timeline, started.current, scale.column(event.offsetX)));
    },
    up(event) {
      const from = started.current;
      started.current = null;
      setDraft(null);
      if (from !== null) select(draft && from !== scale.column(event.offsetX) ? draft : windowOf(timeline, from, from));
    },
  };
}

// Arrows move the cursor; with Shift they stretch what is selected from where the cursor was.
function moveCursor(event, timeline, cursor, setCursor, selection, select) {
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
  if (event.key === "Escape") select(null);
  if (by === undefined) return;
  event.preventDefault();
  const before = cursor ?? timeline.columns - 1;
  const now = Math.min(timeline.columns - 1, Math.max(0, before + by));
  setCursor(now);
  if (!event.shiftKey) return;
  const column = (ms) => Math.round((ms - timeline.from) / timeline.stepMs);
  const [first, last] = selection ? [column(selection[0]), column(selection[1]) - 1] : [before, before];
  select(windowOf(timeline, before === first && before !== last ? last : first, now));
}
