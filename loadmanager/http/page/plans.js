// Plans: computed, looked at, then executed exactly as they were shown.

import { execute, stopPlan } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, Refusal, command, get } from "./api.js";
import { brokersByUsage } from "./asking.js";
import { Problem } from "./dialogs.js";
import { Figure, Notice } from "./fleet.js";
import { bytesPerS, factor, moment, percent, whole, words } from "./format.js";
import { decisions, fleet } from "./live.js";
import { Matrix } from "./matrix.js";
import { go, linkTo } from "./route.js";
import { Rows } from "./rows.js";
import { Cell, html, useCell, useMemo, useState } from "./ui.js";

const KINDS = [["shed", "The next round of shedding"], ["drain", "Empty a broker"], ["moves", "Moves of your own"]];

// Computed by this page, newest first: nobody else may know their hashes.
const computed = new Cell([]);

export async function compute(request) {
  const { body } = await command("POST", `${OURS}/plans`, request);
  computed.value = [body, ...computed.value.filter((each) => each.hash !== body.hash)];
  return body;
}

// One move a line: bundle, then broker.
export function movesOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
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
      const made = await compute({ kind, ...(kind === "drain" ? { broker } : {}), ...(kind === "moves" ? { moves: movesOf(moves) } : {}) });
      go("plans", [made.hash]);
    } catch (problem) {
      setState({ problem });
    }
  }
  return html`<h1>Plans</h1>
    <p class="quiet">A plan is worked out and shown; nothing moves until it is executed, and then exactly what was shown.</p>
    <form class="card" onSubmit=${plan} aria-label="Compute a plan">
      <fieldset><legend>What to plan</legend>${KINDS.map(([value, text]) => html`<label class="radio"><input type="radio" name="kind" value=${value} checked=${kind === value} onChange=${() => setKind(value)} /> ${text}</label>`)}</fieldset>
      ${kind === "drain" && html`<label>Broker <select required value=${broker} onInput=${(event) => setBroker(event.target.value)}><option value="">choose a broker</option>${brokersByUsage().map(([id, said]) => html`<option value=${id}>${id} · ${said}</option>`)}</select></label>`}
      ${kind === "moves" && html`<label>Moves, one a line: bundle, space, broker <textarea required rows="5" spellcheck="false" placeholder="tenant/namespace/0x00000000_0x40000000 broker-2:8080" value=${moves} onInput=${(event) => setMoves(event.target.value)}></textarea></label>`}
      <div class="buttons"><button class="primary" disabled=${state.isAsked}>${state.isAsked ? "Computing…" : "Compute"}</button></div>
      <${Problem} problem=${state.problem} />
    </form>
    <${Kept} />`;
}

// What the leader keeps; of a node that does not list its plans, what was computed here.
function Kept() {
  const own = useCell(computed);
  const { answer } = useAnswer((signal) => get(`${OURS}/plans`, {}, signal).catch((problem) => (problem.status >= 404 ? null : Promise.reject(problem))), [own]);
  const plans = answer?.plans ?? own;
  if (!plans.length) return null;
  return html`<section aria-label="Plans that are kept"><h2>Kept</h2><ul class="kept">${plans.map(
    (each) => html`<li><a href=${linkTo("plans", [each.hash])}><code>${each.hash.slice(0, 12)}</code></a> ${words(each.kind)}, ${whole(each.steps?.length ?? each.bundlesMoved)} moves, ${moment(each.at)} <span class="chip" data-state=${each.state}>${each.state}</span></li>`,
  )}</ul></section>`;
}

export function PlanView({ hash }) {
  const turn = useCell(decisions)[0]; // whenever something was decided a step may be further
  const { answer: plan, problem, again } = useAnswer((signal) => get(`${OURS}/plans/${encodeURIComponent(hash)}`, {}, signal), [hash, turn]);
  const isFrozen = Boolean(useCell(fleet)?.balancing.frozen);
  if (!plan) return html`<p class="crumbs"><a href=${linkTo("plans")}>Plans</a></p><h1>Plan</h1>${problem ? html`<${Problem} problem=${problem} /><p class="quiet">A plan does not outlive its leader, and of each leader the last ones are kept.</p>` : html`<p class="quiet">Asking the leader…</p>`}`;
  const done = plan.steps.filter((each) => each.outcome === "done").length;
  return html`<p class="crumbs"><a href=${linkTo("plans")}>Plans</a></p>
    <h1>Plan <span class="name" title=${plan.hash}>${plan.hash.slice(0, 12)}</span> <span class="chip" data-state=${plan.state}>${plan.state}</span></h1>
    <p class="quiet">${words(plan.kind)}, computed ${moment(plan.at)} under epoch ${plan.epoch}. Hash <code class="hash">${plan.hash}</code> <button class="plain" onClick=${() => navigator.clipboard?.writeText(plan.hash)}>Copy</button></p>
    <div class="actions" role="group" aria-label="Change">
      ${plan.state === "computed" && plan.steps.length > 0 && html`<button class="primary" onClick=${() => execute(plan, isFrozen, again)}>Execute…</button>`}
      ${plan.state === "executing" && html`<button class="grave" onClick=${() => stopPlan(plan, again)}>Stop…</button>`}
      ${plan.state !== "computed" && html`<progress max=${plan.steps.length} value=${done} aria-label="steps done"></progress> <span role="status">${whole(done)} of ${whole(plan.steps.length)} done</span>`}
    </div>
    ${isFrozen && plan.state === "computed" && html`<${Notice} kind="warn" title="The balancer is frozen">Executing the plan insists on it.<//>`}
    <${Effect} plan=${plan} />
    ${plan.steps.length > 0 && plan.brokers && html`<${Brokers} brokers=${plan.brokers} />`}
    ${plan.steps.length > 0 ? html`<section aria-label="From and to"><h2>From and to</h2><${Matrix} steps=${plan.steps} /></section><${Steps} steps=${plan.steps} />` : html`<p class="lead">It moves nothing.</p>`}
    <${Reasons} verdicts=${plan.verdicts} />`;
}

function Effect({ plan: { effect, certificate } }) {
  return html`<section class="figures" aria-label="Effect">
      <${Figure} name="Imbalance" value=${html`${factor(effect.imbalanceBefore)} → ${factor(effect.imbalanceAfter)}`}>busiest by mean; no plan below ${factor(effect.imbalanceLowerBound)}<//>
      <${Figure} name="Bundles moved" value=${whole(effect.bundlesMoved)}>${bytesPerS(effect.loadMovedBytesPerS)}, ${percent(effect.loadMovedPercent)} of all load<//>
      <${Figure} name="Clients disturbed" value=${whole(effect.clientsDisturbed)}>producers and consumers that connect again<//>
      ${certificate && html`<${Figure} name="Heat" value=${html`${factor(certificate.heatBefore)} → ${factor(certificate.heatAfter)}`}>bound ${factor(certificate.bound)} by ${words(certificate.boundBy)}<//>`}
    </section>
    ${certificate && html`<p class="rule">${certificate.sentence}</p>`}
    <${BeforeAfter} effect=${effect} />`;
}

// The imbalance before, after, and what no plan can beat, as bars on one scale.
function BeforeAfter({ effect }) {
  const bars = [["before", effect.imbalanceBefore, "before"], ["after", effect.imbalanceAfter, "after"], ["bound", effect.imbalanceLowerBound, "bound"]];
  const most = Math.max(...bars.map(([, value]) => value), 1);
  return html`<div class="before-after" aria-hidden="true">${bars.map(([name, value, kind]) => html`<span>${name}</span><div class="track"><div class="fill" data-kind=${kind} style=${{ width: `${(100 * value) / most}%` }}></div></div><span class="number">${factor(value)}</span>`)}</div>`;
}

// The load of each broker before and after, those that change most first.
function Brokers({ brokers }) {
  const rows = useMemo(
    () => brokers.id.map((id, row) => ({ id, before: brokers.before[row], after: brokers.after[row] })).sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before)),
    [brokers],
  );
  const most = Math.max(...rows.map((each) => Math.max(each.before, each.after)), 1);
  const width = (value) => ({ width: `${(100 * value) / most}%` });
  const columns = [["id", "Broker", "c-name"], ["bar", "Before (outlined) and after", "c-bar"], ["before", "Before", "number"], ["after", "After", "number"]];
  const link = (each) => linkTo("broker", [each.id]);
  return html`<section aria-label="Before and after"><h2>Before and after</h2><${Rows} label="Load of brokers" className="of-loads" columns=${columns} items=${rows} keyOf=${(each) => each.id} link=${link}
    cells=${(each) => [html`<a href=${link(each)} tabindex="-1">${each.id}</a>`, html`<div class="pair"><div class="after" style=${width(each.after)}></div><div class="before" style=${width(each.before)}></div></div>`, bytesPerS(each.before), bytesPerS(each.after)]} /></section>`;
}

const SIGNS = { done: "✓", failed: "✖", under_way: "▸", planned: "", not_begun: "–", unknown: "?" };

function Steps({ steps }) {
  const columns = [["bundle", "Bundle", "c-name"], ["source", "From", "c-from"], ["destination", "To", "c-to"], ["load", "Load", "number"], ["clients", "Clients", "number"], ["outcome", "Outcome", "c-outcome"]];
  const link = (each) => linkTo("bundle", each.bundle.split("/"));
  return html`<section aria-label="Moves"><h2>Moves</h2><${Rows} label="Moves" className="of-moves" columns=${columns} items=${steps} keyOf=${(each) => each.bundle} link=${link}
    cells=${(each) => [html`<a href=${link(each)} tabindex="-1">${each.bundle}</a>`, each.source, each.destination, bytesPerS(each.loadBytesPerS), whole(each.clients), html`<span class="chip" data-outcome=${each.outcome} title=${each.error ?? ""}>${SIGNS[each.outcome] ?? ""} ${words(each.outcome)}</span>${each.error ? ` ${each.error}` : ""}`]} /></section>`;
}

const Reasons = ({ verdicts }) =>
  verdicts.length > 0 && html`<details><summary>Why, and why not (${whole(verdicts.length)})</summary><ul>${verdicts.slice(0, 500).map((each) => html`<li><strong>${each.subject}</strong>: ${each.sentence}</li>`)}</ul></details>`;
