// Small parts that several views have.

import { fleet } from "./live.js";
import { stateWords } from "./fleet_words.js";
import { linkTo, linkToSubject } from "./route.js";
import { html, useCell } from "./ui.js";

export const BrokerLink = ({ name, children, ...others }) =>
  html`<a href=${linkTo("broker", [name])} ...${others}>${children?.length ? children : name}</a>`;

// A bundle or a broker by its name; whatever else has a name has no card.
export function SubjectLink({ name, ...others }) {
  const link = name && linkToSubject(name);
  return link ? html`<a href=${link} ...${others}>${name}</a>` : name || "nobody";
}

// One of the brokers, the least used first, but for those of `without`.
export function BrokerSelect({ value, choose, without = [], ...others }) {
  const brokers = useCell(fleet)?.brokers ?? { id: [] };
  const rows = brokers.id.map((id, row) => ({ id, highest: brokers.highest[row] ?? 0, state: brokers.state[row] }));
  const shown = rows.filter(({ id }) => !without.includes(id)).sort((a, b) => a.highest - b.highest);
  return html`<select value=${value} onInput=${(event) => choose(event.target.value)} ...${others}>
    <option value="">choose a broker</option>
    ${shown.map(
      ({ id, highest, state }) =>
        html`<option value=${id}>${[`${id} · ${Math.round(highest)} %`, stateWords(state)].filter(Boolean).join(", ")}</option>`,
    )}
  </select>`;
}

export function Choice({ label, value, options, choose }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) => html`<button aria-pressed=${key === value} onClick=${() => choose(key)}>${text}</button>`,
    )}
  </div>`;
}

// What is searched for in a list.
export const Search = ({ label, placeholder, value, change }) => html`<label>
  ${label} <input type="search" placeholder=${placeholder} value=${value} onInput=${(event) => change(event.target.value)} />
</label>`;

// A list of names and what belongs to them; `facts`: [[name, value]], those without a name are left out.
export const Facts = ({ facts }) => html`<dl class="numbers">
  ${facts.filter(([name]) => name).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
</dl>`;

export const Chip = ({ state, children }) => html`<span class="chip" data-state=${state}>${children}</span>`;

export const State = ({ state }) => stateWords(state) && html`<${Chip} state=${state}>${stateWords(state)}<//>`;

export const Waiting = () => html`<p class="quiet">Asking the leader…</p>`;
