// Who gives to whom: a table of brokers that give by brokers that take, with how many bundles.

import { whole } from "./format.js";
import { BrokerLink } from "./parts.js";
import { html, useMemo } from "./ui.js";

const MOST = 16; // of each side; the others are counted together
const OTHERS = "others";

// {from, to, at(from, to)}: those that give and take most, most first.
function matrixOf(steps) {
  const top = (side) => {
    const counts = new Map();
    for (const step of steps) counts.set(step[side], (counts.get(step[side]) ?? 0) + 1);
    const names = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
    return names.length > MOST ? [...names.slice(0, MOST - 1), OTHERS] : names;
  };
  const [from, to] = [top("source"), top("destination")];
  const cells = new Map();
  const place = (names, name) => (names.includes(name) ? name : OTHERS);
  for (const step of steps) {
    const key = `${place(from, step.source)}\n${place(to, step.destination)}`;
    cells.set(key, (cells.get(key) ?? 0) + 1);
  }
  return {
    from,
    to,
    at: (source, destination) => cells.get(`${source}\n${destination}`) ?? 0,
    most: Math.max(...cells.values(), 1),
  };
}

const Name = ({ name }) => (name === OTHERS ? html`<span class="quiet">${OTHERS}</span>` : html`<${BrokerLink} name=${name} />`);

export function Matrix({ steps }) {
  const { from, to, at, most } = useMemo(() => matrixOf(steps), [steps]);
  const cell = (count) =>
    html`<td class=${count ? "some" : ""} style=${{ "--share": count / most }}>${count ? whole(count) : ""}</td>`;
  return html`<div class="scroll"><table class="matrix">
    <caption class="hidden">Bundles by the broker that gives and the one that takes</caption>
    <thead><tr>
      <th scope="col">from \\ to</th>${to.map((name) => html`<th scope="col"><${Name} name=${name} /></th>`)}
    </tr></thead>
    <tbody>${from.map(
      (source) => html`<tr><th scope="row"><${Name} name=${source} /></th>${to.map((name) => cell(at(source, name)))}</tr>`,
    )}</tbody>
  </table></div>`;
}
