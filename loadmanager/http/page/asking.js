// Nothing is changed without asking: what will happen, what is sent, and then what the server said.

import { command } from "./api.js";
import { Modal, Problem, close, show } from "./dialogs.js";
import { fleet } from "./live.js";
import { html, useState } from "./ui.js";

// A change: `title`, `sentences` of what will happen, `method`, `path` (or a function of what was filled in), `fields`,
// `body` (of what was filled in), `verb` for the button, `isGrave`, `done` when there is no better answer, `then(body)`.
export const ask = (change) => show(() => html`<${Asking} change=${change} />`);

const resolved = (value, filled) => (typeof value === "function" ? value(filled) : value);

function Asking({ change }) {
  const [filled, fill] = useState(() => Object.fromEntries((change.fields ?? []).map((field) => [field.name, field.value ?? ""])));
  const [outcome, setOutcome] = useState(null); // null, "asked", {status, body} or {problem}
  const path = resolved(change.path, filled);
  const body = resolved(change.body, filled);
  async function act(event) {
    event.preventDefault();
    setOutcome("asked");
    try {
      const answer = await command(change.method, path, body);
      setOutcome(answer);
      change.then?.(answer.body);
    } catch (problem) {
      setOutcome({ problem });
      change.then?.(null);
    }
  }
  const isDone = outcome?.status !== undefined;
  return html`<${Modal} title=${change.title} onClose=${close}>
    <form onSubmit=${act}>
      <ul class="consequences">${[resolved(change.sentences, filled)].flat().map((each) => html`<li>${each}</li>`)}</ul>
      ${!isDone && (change.fields ?? []).map((field) => html`<${Field} field=${field} value=${filled[field.name]}
        set=${(value) => fill({ ...filled, [field.name]: value })} />`)}
      <p class="sent"><span class="quiet">Sends</span> <code>${change.method} ${path}${body === undefined ? "" : ` ${JSON.stringify(body)}`}</code></p>
      <${Outcome} outcome=${outcome} done=${change.done} />
      <div class="buttons">
        <button type="button" autofocus=${change.isGrave} onClick=${close}>${isDone ? "Close" : "Cancel"}</button>
        ${!isDone && html`<button class=${change.isGrave ? "grave" : "primary"} disabled=${outcome === "asked"}>
          ${outcome === "asked" ? "Asked, waiting…" : outcome?.problem ? "Try again" : change.verb}</button>`}
      </div>
    </form>
  <//>`;
}

function Outcome({ outcome, done }) {
  if (outcome === null || outcome === "asked") return null;
  if (outcome.problem) return html`<${Problem} problem=${outcome.problem} />`;
  return html`<div class="done" role="status">
    <strong>${done ?? "Done"}</strong><span class="code">${outcome.status}</span>
    ${outcome.body && html`<pre>${JSON.stringify(outcome.body, null, 1).slice(0, 2000)}</pre>`}
  </div>`;
}

function Field({ field, value, set }) {
  const onInput = (event) => set(event.target.value);
  const { label, name, type = "text", required = true } = field;
  if (type === "broker")
    return html`<label>${label} <select name=${name} required=${required} value=${value} onInput=${onInput}>
      <option value="">${field.none ?? "choose a broker"}</option>
      ${brokersByUsage(field.without).map(([id, said]) => html`<option value=${id}>${id} · ${said}</option>`)}
    </select></label>`;
  return html`<label>${label} <input name=${name} type=${type} required=${required} min=${field.min} max=${field.max}
    maxlength=${field.maxlength} value=${value} onInput=${onInput} /></label>`;
}

// The least used first.
export function brokersByUsage(without) {
  const brokers = fleet.value?.brokers;
  if (!brokers) return [];
  const rows = brokers.id.map((id, row) => [id, brokers.highest[row], brokers.state[row]]).filter(([id]) => id !== without);
  rows.sort((a, b) => (a[1] ?? 0) - (b[1] ?? 0));
  return rows.map(([id, highest, state]) => [id, `${Math.round(highest ?? 0)} %${state === "active" ? "" : `, ${words(state)}`}`]);
}

const words = (state) => state.replace("_", " ");
