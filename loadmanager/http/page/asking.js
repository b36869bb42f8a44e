// Nothing is changed without asking: what will happen, what is sent, and then what the server said.

import { command } from "./api.js";
import { Modal, Problem, close, show } from "./dialogs.js";
import { BrokerSelect } from "./parts.js";
import { html, useState } from "./ui.js";

// A change: `title`, `sentences` of what will happen, `method`, `path` (or a function of what was filled in), `fields`,
// `body` (of what was filled in), `verb` for the button, `isGrave`, `done` when there is no better answer, `then(body)`.
export const ask = (change) => show(() => html`<${Asking} change=${change} />`);

const resolved = (value, filled) => (typeof value === "function" ? value(filled) : value);

function Asking({ change }) {
  const fields = change.fields ?? [];
  const [filled, fill] = useState(() => Object.fromEntries(fields.map(({ name, value }) => [name, value ?? ""])));
  const set = (name) => (value) => fill({ ...filled, [name]: value });
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
  const verb = outcome === "asked" ? "Asked, waiting…" : outcome?.problem ? "Try again" : change.verb;
  return html`<${Modal} title=${change.title} onClose=${close}>
    <form onSubmit=${act}>
      <ul class="consequences">${[resolved(change.sentences, filled)].flat().map((each) => html`<li>${each}</li>`)}</ul>
      ${!isDone && fields.map((field) => html`<${Field} field=${field} value=${filled[field.name]} set=${set(field.name)} />`)}
      <p class="sent"><span class="quiet">Sends</span>${" "}
        <code>${[change.method, path, body && JSON.stringify(body)].filter(Boolean).join(" ")}</code></p>
      <${Outcome} outcome=${outcome} done=${change.done} />
      <div class="buttons">
        <button type="button" autofocus=${change.isGrave} onClick=${close}>${isDone ? "Close" : "Cancel"}</button>
        ${!isDone && html`<button class=${change.isGrave ? "grave" : "primary"} disabled=${outcome === "asked"}>${verb}</button>`}
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
  const { label, name, type = "text", required = true, min, max, maxlength } = field;
  if (type === "broker") {
    const without = field.without ? [field.without] : [];
    return html`<label>${label} <${BrokerSelect} ...${{ name, required, value, without, choose: set }} /></label>`;
  }
  const onInput = (event) => set(event.target.value);
  return html`<label>${label} <input ...${{ name, type, required, min, max, maxlength, value, onInput }} /></label>`;
}
