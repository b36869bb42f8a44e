// What views are made of. Text always becomes a text node: names come from ZooKeeper, and nothing here sets innerHTML.

const { h, render, createContext } = globalThis.preact;
export const { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } =
  globalThis.preactHooks;
export const html = globalThis.htm.bind(h);
export { createContext, render };

// A value that changes, and those who want to know.
export class Cell {
  #value;
  #watchers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set value(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

// The value of a cell, in a component that is shown anew when it changes. It watches as soon as it is shown, and not
// once the browser has painted: what changes in between would not be seen.
export function useCell(cell) {
  const [, show] = useState(0);
  useLayoutEffect(() => cell.watch(() => show((n) => n + 1)), [cell]);
  return cell.value;
}

// Milliseconds since 1970, once a second.
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// The width in pixels that an element has at the moment.
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
