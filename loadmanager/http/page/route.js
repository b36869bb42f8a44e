// Every view is a URL: #/view/and/names?with=parameters. Names are percent-encoded segment by segment.

import { Cell } from "./ui.js";

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { view: parts[0] ?? "fleet", names: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % that somebody has typed
  }
}

export const route = new Cell(parse());
addEventListener("hashchange", () => (route.value = parse()));

export function linkTo(view, names = [], query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  const path = [view, ...names].map(encodeURIComponent).join("/");
  return given.length ? `#/${path}?${new URLSearchParams(given)}` : `#/${path}`;
}

export const go = (view, names, query) => (location.hash = linkTo(view, names, query));

// The same view with other parameters; it does not become a step of the browser's history.
export function adjust(query) {
  const { view, names, query: before } = route.value;
  history.replaceState(null, "", linkTo(view, names, { ...before, ...query }));
  route.value = parse();
}

const BUNDLE = /^[^/]+\/[^/]+\/0x[0-9a-f]{8}_0x[0-9a-f]{8}$/i;
export const isBundle = (name) => BUNDLE.test(name);

// The card of a bundle or a broker, whichever the name is; null for neither, such as `cluster`.
export function linkToSubject(name) {
  if (isBundle(name)) return linkTo("bundle", name.split("/"));
  return /:\d+$/.test(name) ? linkTo("broker", [name]) : null;
}
