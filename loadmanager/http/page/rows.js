// A table of any length: only the rows that can be seen are in the document.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const BEYOND = 8; // rows kept above and below what is seen
const STEP = 4; // rows scrolled until others are put into the document
const ALL = 120; // as many are shown without scrolling within the page

// `columns`: [[key, heading, class]]; `cells(item)` in the same order; `link(item)` opens it; `rowHeight` in pixels, as in the
// style sheet.
export function Rows({ label, columns, items, cells, link, keyOf, rowHeight = 34, sort, onSort, className = "" }) {
  const box = useRef();
  const [seen, setSeen] = useState(0); // the first row that is seen, in steps
  const [height, setHeight] = useState(600);
  const isLong = items.length > ALL;
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setHeight(entry.contentRect.height));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const scrolled = (event) => isLong && setSeen(STEP * Math.floor(event.currentTarget.scrollTop / rowHeight / STEP));
  const first = isLong ? Math.max(0, seen - BEYOND) : 0;
  const last = isLong ? Math.min(items.length, seen + STEP + Math.ceil(height / rowHeight) + BEYOND) : items.length;
  const filler = (count) => html`<div role="presentation" style=${{ height: `${count * rowHeight}px` }}></div>`;
  const row = (item, at) => html`<${Row} key=${keyOf(item)} ...${{ item, at, id: keyOf(item), columns, cells, link }} />`;
  return html`<div class=${`rows ${className}`} role="table" aria-label=${label} aria-rowcount=${items.length + 1}>
    <div class="row head" role="row">
      ${columns.map(([key, heading, name]) => html`<${Heading} key=${key} ...${{ id: key, heading, name, sort, onSort }} />`)}
    </div>
    <div class=${isLong ? "body long" : "body"} role="rowgroup" ref=${box} onScroll=${scrolled}>
      ${filler(first)}${items.slice(first, last).map((item, n) => row(item, first + n))}${filler(items.length - last)}
    </div>
  </div>`;
}

function Row({ item, at, id, columns, cells, link }) {
  const open = ({ key, target, currentTarget }) => {
    if (key === "Enter" && target === currentTarget && link) location.hash = link(item);
  };
  return html`<div class="row" role="row" aria-rowindex=${at + 2} data-row=${id} tabindex="0" onKeyDown=${open}>
    ${cells(item).map((cell, column) => html`<div role="cell" class=${columns[column][2]}>${cell}</div>`)}
  </div>`;
}

function Heading({ id, heading, name, sort, onSort }) {
  if (!onSort || !heading) return html`<div role="columnheader" class=${name}>${heading}</div>`;
  const isSorted = sort === id;
  return html`<div role="columnheader" class=${name} aria-sort=${isSorted ? "descending" : "none"}>
    <button class="plain" onClick=${() => onSort(id)}>${heading}${isSorted ? " ↓" : ""}</button>
  </div>`;
}

// The value, but no more often than every `ms` and not while `isHeld()`: rows shall not jump away under a finger.
export function useSettled(value, ms, isHeld, inputs) {
  const [settled, settle] = useState(value);
  const latest = useRef(value);
  latest.current = value;
  useEffect(() => {
    settle(latest.current);
    const timer = setInterval(() => isHeld() || settle(latest.current), ms);
    return () => clearInterval(timer);
  }, inputs);
  return settled;
}
