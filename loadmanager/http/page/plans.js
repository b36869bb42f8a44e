// Plans: computed, looked at, then executed exactly as they were shown.

import { execute, stopPlan } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, Refusal, command, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { Figure, Notice } from "./fleet.js";
import { bytesPerS, factor, moment, percent, whole, words } from "./format.js";
import { decisions, fleet } from "./live.js";
import { Matrix } from "./matrix.js";
import { BrokerLink, BrokerSelect, Chip, SubjectLink, Waiting } from "./parts.js";
import { go, linkTo, linkToSubject } from "./route.js";
import { Rows } from "./rows.js";
import { Cell, html, useCell, useMemo, useState } from "./ui.js";

const TOLD = 500; // of the reasons
const KINDS = [
  ["shed", "The next round of shedding"],
  ["drain", "Empty a broker"],
  ["moves", "Moves of your own"],
];

// Computed by this page, newest first: nobody else may know their hashes.
const computed = new Cell([]);

export async function compute(request) {
  const { body } = await command("POST", `${OURS}/plans`, request);
  computed.value = [body, ...computed.value.filter((each) => each.hash !== body.hash)];
  return body;
}

// One move a line: bundle, then broker.
function movesOf(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  return lines.map((line) => {
    const [bundle, destination] = line.split(/[\s,;]+(?:->|→)?\s*/);
    if (!destination) throw new Refusal(400, `"${line}": a line is a bundle, a space, and a broker`);
    return { bundle, destination };
  });
}

export function PlansView() {
  const [kind, setKind] = useState("shed");
  const [broker, setBroker] = useState("");
  const [moves, setMoves] = useState("");
  const [state, setState] = useState({});
  useCell(fleet);
  async function plan(event) {
    event.preventDefault();
    setState({ isAsked: true });
    try {
      const made = await compute({
        kind,
        ...(kind === "drain" ? { broker } : {}),
        ...(kind === "moves" ? { moves: movesOf(moves) } : {}),
      });
      go("plans", [made.hash]);
    } catch (problem) {
      setState({ problem });
    }
  }
  return html`<h1>Plans</h1>
    <p class="quiet">Compute a plan first. Nothing moves until you execute it, and then exactly what was shown.</p>
    <form class="card" onSubmit=${plan} aria-label="Compute a plan">
      <fieldset><legend>What to plan</legend>
        ${KINDS.map(([value, text]) => html`<${Radio} ...${{ value, text, checked: kind === value, choose: setKind }} />`)}
      </fieldset>
      ${kind === "drain" && html`<label>Broker <${BrokerSelect} required value=${broker} choose=${setBroker} /></label>`}
      ${kind === "moves" && html`<${Moves} moves=${moves} change=${setMoves} />`}
      <div class="buttons">
        <button class="primary" disabled=${state.isAsked}>${state.isAsked ? "Computing…" : "Compute"}</button>
      </div>
      <${Problem} problem=${state.problem} />
    </form>
    <${Kept} />`;
}

const Radio = ({ value, text, checked, choose }) => html`<label class="radio">
  <input type="radio" name="kind" value=${value} checked=${checked} onChange=${() => choose(value)} /> ${text}</label>`;

const Moves = ({ moves, change }) => html`<label>Moves, one a line: bundle, space, broker${" "}
  <textarea required rows="5" spellcheck="false" placeholder="tenant/namespace/0x00000000_0x40000000 broker-2:8080"
    value=${moves} onInput=${(event) => change(event.target.value)}></textarea></label>`;

// What the leader keeps; of one that does not list its plans, what was computed here.
function Kept() {
  const own = useCell(computed);
  const { answer } = useAnswer((signal) => get(`${OURS}/plans`, {}, signal), [own]);
  const plans = answer?.plans ?? own.map((each) => ({ ...each, bundlesMoved: each.steps.length }));
  if (!plans.length) return null;
  return html`<section aria-label="Plans that are kept">
    <h2>Kept</h2>
    <ul class="kept">${plans.map((each) => html`<${KeptPlan} ...${each} />`)}</ul>
  </section>`;
}

const KeptPlan = ({ hash, kind, bundlesMoved, at, state }) => html`<li>
  <a href=${linkTo("plans", [hash])}><code>${shortHash(hash)}</code></a> ${words(kind)}, ${whole(bundlesMoved)} moves,${" "}
  ${moment(at)} <${Chip} state=${state}>${state}<//></li>`;

const shortHash = (hash) => hash.slice(0, 12);

export function PlanView({ hash }) {
  const turn = useCell(decisions)[0]; // whenever something was decided a step may be further
  const path = `${OURS}/plans/${encodeURIComponent(hash)}`;
  const { answer: plan, problem, again } = useAnswer((signal) => get(path, {}, signal), [hash, turn]);
  return html`<p class="crumbs"><a href=${linkTo("plans")}>Plans</a></p>
    ${plan ? html`<${Plan} plan=${plan} again=${again} />` : html`<h1>Plan</h1><${NoPlan} problem=${problem} />`}`;
}

function NoPlan({ problem }) {
  if (!problem) return html`<${Waiting} />`;
  return html`<${Problem} problem=${problem} />
    <p class="quiet">A plan does not outlive its leader, and of each leader the last ones are kept.</p>`;
}

function Plan({ plan, again }) {
  const { hash, state, kind, at, epoch, steps, verdicts, brokers } = plan;
  const isFrozen = Boolean(useCell(fleet)?.balancing.frozen);
  const copy = () => navigator.clipboard?.writeText(hash);
  return html`<h1>Plan <span class="name" title=${hash}>${shortHash(hash)}</span> <${Chip} state=${state}>${state}<//></h1>
    <p class="quiet">${words(kind)}, computed ${moment(at)} under epoch ${epoch}. Hash <code class="hash">${hash}</code>${" "}
      <button class="plain" onClick=${copy}>Copy</button></p>
    <${Actions} plan=${plan} isFrozen=${isFrozen} again=${again} />
    ${
      isFrozen &&
      state === "computed" &&
      html`<${Notice} kind="warn" title="The balancer is frozen">If you execute the plan, its bundles move all the same.<//>`
    }
    <${Effect} plan=${plan} />
    ${
      steps.length > 0
        ? html`<${Brokers} brokers=${brokers} />
            <section aria-label="From and to"><h2>From and to</h2><${Matrix} steps=${steps} /></section>
            <${Steps} steps=${steps} />`
        : html`<p class="lead">It moves nothing.</p>`
    }
    ${verdicts.length > 0 && html`<${Reasons} verdicts=${verdicts} />`}`;
}

function Actions({ plan, isFrozen, again }) {
  const { state, steps } = plan;
  const done = steps.filter((each) => each.outcome === "done").length;
  const run = () => execute(plan, isFrozen, again);
  return html`<div class="actions" role="group" aria-label="Change">
    ${state === "computed" && steps.length > 0 && html`<button class="primary" onClick=${run}>Execute…</button>`}
    ${state === "executing" && html`<button class="grave" onClick=${() => stopPlan(plan, again)}>Stop…</button>`}
    ${
      state !== "computed" &&
      html`<progress max=${steps.length} value=${done} aria-label="steps done"></progress>
        <span role="status">${whole(done)} of ${whole(steps.length)} done</span>`
    }
  </div>`;
}

function Effect({ plan: { effect, certificate } }) {
  const { imbalanceBefore, imbalanceAfter, loadMovedBytesPerS, loadMovedPercent } = effect;
  const { heatBefore, heatAfter, bound } = certificate;
  const change = (before, after) => `${factor(before)} → ${factor(after)}`;
  return html`<section class="figures" aria-label="Effect">
      <${Figure} name="Imbalance" value=${change(imbalanceBefore, imbalanceAfter)}>busiest by mean<//>
      <${Figure} name="Bundles moved" value=${whole(effect.bundlesMoved)}>
        ${bytesPerS(loadMovedBytesPerS)}, ${percent(loadMovedPercent)} of all load<//>
      <${Figure} name="Clients disturbed" value=${whole(effect.clientsDisturbed)}>producers and consumers that connect again<//>
      <${Figure} name="Heat" value=${change(heatBefore, heatAfter)}>
        best possible ${factor(bound)}, by ${words(certificate.boundBy)}<//>
    </section>
    <p class="rule">${certificate.sentence}</p>
    <${BeforeAfter} before=${heatBefore} after=${heatAfter} bound=${bound} />`;
}

// The heat before, after, and the best possible, as bars on one scale.
function BeforeAfter(heats) {
  const bars = ["before", "after", "bound"].map((name) => [name, heats[name]]);
  const most = Math.max(...bars.map(([, value]) => value), 1);
  const fill = (name, value) => html`<div class="fill" data-kind=${name} style=${{ width: `${(100 * value) / most}%` }}></div>`;
  return html`<div class="before-after" aria-hidden="true">
    ${bars.map(
      ([name, value]) => html`<span>${name}</span><div class="track">${fill(name, value)}</div>
        <span class="number">${factor(value)}</span>`,
    )}
  </div>`;
}

// The load of each broker before and after, those that change most first.
function Brokers({ brokers }) {
  const rows = useMemo(
    () =>
      brokers.id
        .map((id, row) => ({ id, before: brokers.before[row], after: brokers.after[row] }))
        .sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before)),
    [brokers],
  );
  const most = Math.max(...rows.map((each) => Math.max(each.before, each.after)), 1);
  const bar = (kind, value) => html`<div class=${kind} style=${{ width: `${(100 * value) / most}%` }}></div>`;
  const cells = ({ id, before, after }) => [
    html`<${BrokerLink} name=${id} tabindex="-1" />`,
    html`<div class="pair">${bar("after", after)}${bar("before", before)}</div>`,
    bytesPerS(before),
    bytesPerS(after),
  ];
  return html`<section aria-label="Before and after">
    <h2>Before and after</h2>
    <${Rows} label="Load of brokers" className="of-loads" columns=${LOADS} items=${rows} cells=${cells}
      keyOf=${(each) => each.id} link=${(each) => linkTo("broker", [each.id])} />
  </section>`;
}

const LOADS = [
  ["id", "Broker", "c-name"],
  ["bar", "Before (outlined) and after", "c-bar"],
  ["before", "Before", "number"],
  ["after", "After", "number"],
];

const SIGNS = { done: "✓", failed: "✖", in_progress: "▸", planned: "", not_begun: "–", unknown: "?" };

const MOVES = [
  ["bundle", "Bundle", "c-name"],
  ["source", "From", "c-from"],
  ["destination", "To", "c-to"],
  ["load", "Load", "number"],
  ["clients", "Clients", "number"],
  ["outcome", "Outcome", "c-outcome"],
];

const Outcome = ({ outcome, error }) => html`<span class="chip" data-outcome=${outcome} title=${error ?? ""}>
  ${SIGNS[outcome] ?? ""} ${words(outcome)}</span> ${error ?? ""}`;

const cellsOfMove = (step) => [
  html`<${SubjectLink} name=${step.bundle} tabindex="-1" />`,
  step.source,
  step.destination,
  bytesPerS(step.loadBytesPerS),
  whole(step.clients),
  html`<${Outcome} ...${step} />`,
];

const Steps = ({ steps }) => html`<section aria-label="Moves">
  <h2>Moves</h2>
  <${Rows} label="Moves" className="of-moves" columns=${MOVES} items=${steps} cells=${cellsOfMove}
    keyOf=${(each) => each.bundle} link=${(each) => linkToSubject(each.bundle)} />
</section>`;

const Reasons = ({ verdicts }) => html`<details>
  <summary>Why, and why not (${whole(verdicts.length)})</summary>
  <ul>${verdicts.slice(0, TOLD).map((each) => html`<li><strong>${each.subject}</strong>: ${each.sentence}</li>`)}</ul>
</details>`;
