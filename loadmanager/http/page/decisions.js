// Decisions and non-decisions: the sentence, the numbers behind it, and what came of it beside what was predicted.

import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { factor, moment, said, whole, words } from "./format.js";
import { decisions as live } from "./live.js";
import { adjust, linkToSubject, route } from "./route.js";
import { html, useCell, useMemo, useState } from "./ui.js";

const LIMIT = 500;
const PAGE = 100;
const ACTED = [["", "acted or not"], ["yes", "something was done"], ["no", "nothing was done"]];

export function DecisionsView() {
  const { since, until } = useCell(route).query;
  const window = since && until ? [Number(since), Number(until)] : null;
  return html`<h1>Decisions</h1>
    ${window && html`<p>From ${moment(window[0])} to ${moment(window[1])}. <button onClick=${() => adjust({ since: undefined, until: undefined })}>All</button></p>`}
    <${DecisionList} window=${window} />`;
}

// Of a window [from, until] in milliseconds, or the newest, and then those that come.
export function DecisionList({ window = null, subject }) {
  const { kind = "", acted = "", text = "" } = useCell(route).query;
  const coming = useCell(live);
  const [shown, setShown] = useState(PAGE);
  const asked = useAnswer(
    (signal) => get(`${OURS}/decisions`, { since: window?.[0], until: window?.[1], subject, limit: LIMIT }, signal),
    [window?.[0], window?.[1], subject],
  );
  const all = useMemo(() => (window ? doneFirst : same)(merged(asked.answer?.decisions ?? [], window ? [] : coming.filter((each) => !subject || each.subject === subject))), [asked.answer, coming, window?.[0], window?.[1], subject]);
  const kinds = useMemo(() => [...new Set([...all.map((each) => each.kind), kind])].filter(Boolean).sort(), [all, kind]);
  const found = useMemo(() => all.filter((each) => fits(each, kind, acted, text)), [all, kind, acted, text]);
  const set = (name) => (event) => adjust({ [name]: event.target.value });
  return html`<div class="tools">
      <label>Kind <select value=${kind} onInput=${set("kind")}><option value="">all</option>${kinds.map((each) => html`<option value=${each}>${words(each)}</option>`)}</select></label>
      <label>Which <select value=${acted} onInput=${set("acted")}>${ACTED.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
      <label>Words <input type="search" placeholder="in subject or sentence" value=${text} onInput=${set("text")} /></label>
      <span class="quiet" role="status">${whole(found.length)} of ${whole(all.length)}${all.length >= LIMIT ? ", the newest" : ""}</span>
    </div>
    <${Problem} problem=${asked.problem} />
    <ol class="decisions" aria-label="Decisions, newest first">
      ${found.slice(0, shown).map((each) => html`<${Decision} key=${`${each.epoch}:${each.sequence}`} entry=${each} />`)}
    </ol>
    ${found.length === 0 && !asked.isLoading && html`<p class="quiet">${all.length ? "None fits." : "There is none: this leader has decided nothing in that time."}</p>`}
    ${all.length > 0 && all.length < LIMIT && html`<p class="quiet">These are of the leader of epoch ${asked.answer?.epoch ?? all[0].epoch}. What leaders before it decided is in the history: <code>loadmanager admin why BUNDLE</code></p>`}
    ${found.length > shown && html`<button onClick=${() => setShown(shown + PAGE)}>Show ${whole(Math.min(PAGE, found.length - shown))} more</button>`}`;
}

// Of a window first what happened in it: what was not done was mostly said before it and after it, too.
const doneFirst = (entries) => [...entries.filter((each) => each.acted), ...entries.filter((each) => !each.acted)];
const same = (entries) => entries;

// Newest first, each once; of one that is in both, what came live is newer.
function merged(asked, coming) {
  const byKey = new Map([...asked, ...[...coming].reverse()].map((each) => [`${each.epoch}:${each.sequence}`, each]));
  return [...byKey.values()].sort((a, b) => b.lastAt - a.lastAt || b.epoch - a.epoch || b.sequence - a.sequence);
}

function fits(entry, kind, acted, text) {
  const wanted = text.toLowerCase();
  return (
    (!kind || entry.kind === kind) &&
    (!acted || entry.acted === (acted === "yes")) &&
    (!wanted || `${entry.subject} ${sentenceOf(entry)}`.toLowerCase().includes(wanted))
  );
}

export function Decision({ entry }) {
  const link = linkToSubject(entry.subject);
  const { source, destination } = entry;
  return html`<li class="decision" data-acted=${entry.acted} data-row tabindex="0"><details>
    <summary>
      <time datetime=${new Date(entry.lastAt).toISOString()}>${moment(entry.lastAt)}</time>
      <span class="chip" data-acted=${entry.acted}>${entry.acted ? "✓ " : "– "}${words(entry.kind)}</span>
      <span class="subject">${entry.subject}</span>
      <span class="sentence">${sentenceOf(entry)}${entry.times > 1 ? html` <span class="quiet">(${whole(entry.times)} times since ${moment(entry.at)})</span>` : ""}</span>
      <${Effect} effect=${entry.effect} />
    </summary>
    <dl class="numbers">
      ${link && html`<dt>card</dt><dd><a href=${link}>${entry.subject}</a></dd>`}
      ${(source || destination) && html`<dt>from, to</dt><dd><${Subject} name=${source} /> → <${Subject} name=${destination} /></dd>`}
      ${Object.entries(entry.why ?? {}).map(([key, value]) => html`<dt>${words(key)}</dt><dd>${said(value)}</dd>`)}
      <dt>rule</dt><dd><code>${entry.reason}</code></dd><dt>decision</dt><dd>${entry.epoch}:${entry.sequence}, first at ${moment(entry.at)}</dd>
    </dl>
  </details></li>`;
}

// Steps of a move have no sentence of their own: who gave it to whom says it.
const sentenceOf = ({ sentence, source, destination, reason }) => sentence || `${source ?? "nobody"} → ${destination ?? "nobody yet"}: ${words(reason)}`;

export function Subject({ name }) {
  if (!name) return "nobody";
  const link = linkToSubject(name);
  return link ? html`<a href=${link}>${name}</a>` : name;
}

// What a move was to make of the imbalance, and what it has made of it.
function Effect({ effect }) {
  if (!effect?.predicted) return null;
  const { predicted, measured } = effect;
  const kind = !measured ? "" : measured.imbalanceAfter <= predicted.imbalanceAfter * 1.02 ? "good" : measured.imbalanceAfter < measured.imbalanceBefore ? "less" : "worse";
  const words = { good: "✓ as predicted", less: "▽ less than predicted", worse: "✖ not better" };
  return html`<span class="effect" data-kind=${kind}>imbalance ${factor(predicted.imbalanceBefore)} → <b>${factor(predicted.imbalanceAfter)}</b> predicted,
    ${" "}${measured ? html`<b>${factor(measured.imbalanceAfter)}</b> measured <em>${words[kind]}</em>` : "not measured yet"}</span>`;
}

