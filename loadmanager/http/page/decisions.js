// Decisions and non-decisions: the sentence, the numbers behind it, and what came of it beside what was predicted.

import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { factor, moment, said, whole, words } from "./format.js";
import { decisions as live } from "./live.js";
import { Facts, Search, SubjectLink } from "./parts.js";
import { adjust, linkToSubject, route } from "./route.js";
import { html, useCell, useMemo, useState } from "./ui.js";

const LIMIT = 500;
const PAGE = 100;
const NONE = "There is none: this leader has decided nothing in that time.";
const ACTED = [
  ["", "rounds, not their moves"],
  ["all", "every decision"],
  ["yes", "something was done"],
  ["no", "nothing was done"],
];

export function DecisionsView() {
  const { since, until } = useCell(route).query;
  const window = since && until ? [Number(since), Number(until)] : null;
  const all = () => adjust({ since: undefined, until: undefined });
  return html`<h1>Decisions</h1>
    ${window && html`<p>From ${moment(window[0])} to ${moment(window[1])}. <button onClick=${all}>All</button></p>`}
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
  const all = useMemo(() => {
    const later = window ? [] : coming.filter((each) => !subject || each.subject === subject);
    const entries = merged(asked.answer?.decisions ?? [], later);
    return window ? doneFirst(entries) : entries;
  }, [asked.answer, coming, window?.[0], window?.[1], subject]);
  const kinds = useMemo(
    () => [...new Set([...all.map((each) => each.kind), kind])].filter(Boolean).sort(),
    [all, kind],
  );
  const isWhole = Boolean(subject || kind || acted);
  const found = useMemo(
    () => all.filter((each) => fits(each, kind, acted, text) && (isWhole || !isMoveOfRound(each))),
    [all, kind, acted, text, isWhole],
  );
  const moves = useMemo(() => movesByRound(all), [all]);
  const decision = (each) => html`<${Decision} key=${keyOf(each)} entry=${each} moves=${moves.get(keyOf(each))} />`;
  return html`<${Filters} subject=${subject} kinds=${kinds} found=${found.length} all=${all.length} />
    <${Problem} problem=${asked.problem} />
    <ol class="decisions" aria-label="Decisions, newest first">
      ${found.slice(0, shown).map(decision)}
    </ol>
    ${!found.length && !asked.isLoading && html`<p class="quiet">${all.length ? "None fits." : NONE}</p>`}
    ${
      all.length > 0 &&
      all.length < LIMIT &&
      html`<p class="quiet">These are of the leader of epoch ${all[0].epoch}. What leaders before it decided is in the
        history: <code>loadmanager admin why BUNDLE</code></p>`
    }
    ${found.length > shown && html`<button onClick=${() => setShown(shown + PAGE)}>Show more</button>`}`;
}

function Filters({ subject, kinds, found, all }) {
  const { kind = "", acted = "", text = "" } = useCell(route).query;
  const set = (name) => (event) => adjust({ [name]: event.target.value });
  const options = (pairs) => pairs.map(([value, name]) => html`<option value=${value}>${name}</option>`);
  return html`<div class="tools">
    <label>Kind <select value=${kind} onInput=${set("kind")}>
      ${options([["", "all"], ...kinds.map((each) => [each, words(each)])])}</select></label>
    <label>Which <select value=${acted} onInput=${set("acted")}>${options(subject ? [["", "every decision"], ...ACTED.slice(2)] : ACTED)}</select></label>
    <${Search} label="Words" placeholder="in subject or sentence" value=${text} change=${(value) => adjust({ text: value })} />
    <span class="quiet" role="status">${whole(found)} of ${whole(all)}${all >= LIMIT ? ", the newest" : ""}</span>
  </div>`;
}

const keyOf = ({ epoch, sequence }) => `${epoch}:${sequence}`;

const isMoveOfRound = ({ kind, round }) => kind === "unloaded" || (kind !== "round" && Number.isInteger(round));

function movesByRound(entries) {
  const moves = Map.groupBy(entries.filter(isMoveOfRound), roundOf);
  return new Map(entries.filter(({ kind }) => kind === "round").map((each) => [keyOf(each), moves.get(roundOf(each))]));
}

const roundOf = ({ epoch, round }) => `${epoch}:${round}`;

// Of a window first what happened in it: what was not done was mostly said before it and after it, too.
const doneFirst = (entries) => [...entries.filter((each) => each.acted), ...entries.filter((each) => !each.acted)];

// Newest first, each once; of one that is in both, what came live is newer.
function merged(asked, coming) {
  const byKey = new Map([...asked, ...[...coming].reverse()].map((each) => [keyOf(each), each]));
  return [...byKey.values()].sort((a, b) => b.lastAt - a.lastAt || b.epoch - a.epoch || b.sequence - a.sequence);
}

function fits(entry, kind, acted, text) {
  const wanted = text.toLowerCase();
  return (
    (!kind || entry.kind === kind) &&
    (!["yes", "no"].includes(acted) || entry.acted === (acted === "yes")) &&
    (!wanted || `${entry.subject} ${routeOf(entry)} ${sentenceOf(entry)}`.toLowerCase().includes(wanted))
  );
}

function Decision({ entry, moves = [] }) {
  const { epoch, sequence, at, lastAt, times, acted, kind, subject, reason, source, destination, effect } = entry;
  const isMove = source || destination;
  const move = (each) => html`<li>${routeOf(each)} <${SubjectLink} name=${each.subject} /></li>`;
  return html`<li class="decision" data-acted=${acted} data-row tabindex="0"><details>
    <summary>
      <time datetime=${new Date(lastAt).toISOString()}>${moment(lastAt)}</time>
      <span class="chip" data-acted=${acted}>${acted ? "✓ " : "– "}${words(kind)}</span>
      <span class="subject">${subject} ${routeOf(entry)}</span>
      <span class="sentence">${sentenceOf(entry)}${" "}
        ${times > 1 && html`<span class="quiet">(${whole(times)} times since ${moment(at)})</span>`}</span>
      <${Effect} effect=${effect} />
    </summary>
    <${Facts} facts=${[
      [linkToSubject(subject) && "card", html`<${SubjectLink} name=${subject} />`],
      [moves.length > 0 && "moves", html`<ul>${moves.map(move)}</ul>`],
      [isMove && "from, to", html`<${SubjectLink} name=${source} /> → <${SubjectLink} name=${destination} />`],
      ...Object.entries(entry.why ?? {}).map(([key, value]) => [words(key), said(value)]),
      ["rule", html`<code>${reason}</code>`],
      ["decision", `${epoch}:${sequence}, first at ${moment(at)}`],
    ]} />
  </details></li>`;
}

// The source of a move before its destination.
const routeOf = ({ source, destination }) =>
  destination ? `${source ?? ""} → ${destination}`.trim() : source ? `from ${source}` : "";

// Steps of a move have no sentence of their own.
const sentenceOf = ({ sentence, reason }) => sentence || words(reason);

// What a move was to make of the imbalance, and what it has made of it.
function Effect({ effect }) {
  if (!effect?.predicted) return null;
  const { predicted, measured } = effect;
  const [kind, verdict] = measured ? VERDICTS.find(([, , holds]) => holds(predicted, measured)) : ["", ""];
  return html`<span class="effect" data-kind=${kind}>imbalance ${factor(predicted.imbalanceBefore)} →${" "}
    <b>${factor(predicted.imbalanceAfter)}</b> predicted,${" "}
    ${measured ? html`${factor(measured.imbalanceBefore)} → <b>${factor(measured.imbalanceAfter)}</b> measured <em>${verdict}</em>` : "not measured yet"}</span>`;
}

// The first that holds.
const VERDICTS = [
  ["good", "✓ as predicted", (predicted, measured) => measured.imbalanceAfter <= 1.02 * predicted.imbalanceAfter],
  ["less", "▽ less than predicted", (_, measured) => measured.imbalanceAfter < measured.imbalanceBefore],
  ["worse", "✖ not better", () => true],
];
