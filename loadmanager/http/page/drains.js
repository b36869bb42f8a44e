// Drains: what one would cost before it begins, how far it is, and what holds it up and why.

import { drain, stopDrain } from "./actions.js";
import { duration, moment, whole } from "./format.js";
import { brokersByUsage } from "./asking.js";
import { fleet } from "./live.js";
import { compute } from "./plans.js";
import { adjust, linkTo, linkToSubject, route } from "./route.js";
import { Problem } from "./dialogs.js";
import { html, useCell, useState } from "./ui.js";

export function DrainsView() {
  const now = useCell(fleet);
  const drains = now?.drains ?? [];
  return html`<h1>Drains</h1>
    <p class="quiet">A drain empties a broker before it is stopped: its bundles go to the others, and it is given none.</p>
    ${drains.map((each) => html`<${DrainProgress} key=${each.broker} drain=${each} />`)}
    ${now && drains.length === 0 && html`<p>No broker is being drained.</p>`}
    <${Start} draining=${drains.map((each) => each.broker)} />`;
}

// How far a drain is. `bundlesLeft` of what there was with those that have left.
export function DrainProgress({ drain: { broker, state, since, bundlesLeft, moved, failed, ratePerS, etaS, blocked } }) {
  const all = bundlesLeft + moved;
  return html`<section class="card drain" data-state=${state} aria-label=${`Drain of ${broker}`}>
    <h2><a href=${linkTo("broker", [broker])}>${broker}</a> <span class="chip" data-state=${state}>${state === "done" ? "✓ empty" : state === "blocked" ? "✖ blocked" : "▸ draining"}</span></h2>
    <progress max=${all || 1} value=${all ? moved : 1} aria-label=${`${whole(moved)} of ${whole(all)} bundles have left`}></progress>
    <p>${state === "done" ? "It owns nothing, and may be stopped." : `${whole(bundlesLeft)} of ${whole(all)} bundles are left`}${state === "draining" ? (etaS === null ? "; nothing has moved yet, so there is no estimate" : `, done in about ${duration(etaS)} at ${ratePerS.toFixed(1)} bundles/s`) : ""}.
      ${" "}${failed ? html`<strong>${whole(failed)} did not leave when asked.</strong>` : ""} <span class="quiet">Since ${moment(since)}.</span></p>
    ${blocked.length > 0 && html`<h3>What stays, and why</h3><ul class="blocked">${blocked.map((each) => html`<li>${linkToSubject(each.bundle) ? html`<a href=${linkToSubject(each.bundle)}>${each.bundle}</a>` : each.bundle}: ${each.why}</li>`)}</ul>
      ${bundlesLeft > blocked.length && blocked.length >= 20 ? html`<p class="quiet">and more</p>` : ""}`}
    <div class="actions"><button onClick=${() => stopDrain(broker)}>Stop the drain…</button></div>
  </section>`;
}

// The estimate is a plan of the same moves, which is not carried out.
function Start({ draining }) {
  useCell(fleet);
  const { broker = "" } = useCell(route).query;
  const [estimate, setEstimate] = useState(null);
  async function work() {
    setEstimate({ broker, isAsked: true });
    try {
      setEstimate({ broker, plan: await compute({ kind: "drain", broker }) });
    } catch (problem) {
      setEstimate({ broker, problem });
    }
  }
  const current = estimate?.broker === broker ? estimate : null;
  return html`<section class="card" aria-label="Begin a drain"><h2>Begin a drain</h2>
    <div class="tools"><label>Broker <select value=${broker} onInput=${(event) => adjust({ broker: event.target.value })}><option value="">choose a broker</option>
      ${brokersByUsage().filter(([id]) => !draining.includes(id)).map(([id, said]) => html`<option value=${id}>${id} · ${said}</option>`)}</select></label>
      <button disabled=${!broker || current?.isAsked} onClick=${work}>Estimate</button>
      <button class="primary" disabled=${!broker} onClick=${() => drain(broker)}>Drain…</button></div>
    <${Problem} problem=${current?.problem} />
    ${current?.plan && html`<p class="lead">${whole(current.plan.steps.length)} bundles would move, ${whole(current.plan.effect.clientsDisturbed)} clients would connect again; the imbalance of the others would go from ${current.plan.effect.imbalanceBefore.toFixed(2)} to ${current.plan.effect.imbalanceAfter.toFixed(2)}. <a href=${linkTo("plans", [current.plan.hash])}>The moves</a></p>
      ${current.plan.verdicts.filter((each) => !each.acted).slice(0, 10).map((each) => html`<p class="rule">${each.subject}: ${each.sentence}</p>`)}`}
  </section>`;
}
