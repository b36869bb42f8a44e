// Drains: what one would cost before it begins, how far it is, and what holds it up and why.

import { drain, stopDrain } from "./actions.js";
import { Problem } from "./dialogs.js";
import { duration, factor, moment, whole } from "./format.js";
import { fleet } from "./live.js";
import { BrokerLink, BrokerSelect, Chip, SubjectLink } from "./parts.js";
import { compute } from "./plans.js";
import { adjust, linkTo, route } from "./route.js";
import { html, useCell, useState } from "./ui.js";

const TOLD = 20; // of the bundles that stay, as many as the server tells

export function DrainsView() {
  const now = useCell(fleet);
  const drains = now?.drains ?? [];
  return html`<h1>Drains</h1>
    <p class="quiet">A drain empties a broker before it is stopped: its bundles go to the others, and it is given none.</p>
    ${drains.map((each) => html`<${DrainProgress} key=${each.broker} drain=${each} />`)}
    ${now && drains.length === 0 && html`<p>No broker is being drained.</p>`}
    <${Start} draining=${drains.map((each) => each.broker)} />`;
}

const SIGNS = { done: "✓ empty", blocked: "✖ blocked", draining: "▸ draining" };

// How far a drain is: what is left of what there was, with those that have left.
export function DrainProgress({ drain }) {
  const { broker, state, since, bundlesLeft, moved, failed, blocked } = drain;
  const all = bundlesLeft + moved;
  const said = `${whole(moved)} of ${whole(all)} bundles have left`;
  return html`<section class="card drain" data-state=${state} aria-label=${`Drain of ${broker}`}>
    <h2><${BrokerLink} name=${broker} /> <${Chip} state=${state}>${SIGNS[state]}<//></h2>
    <progress max=${all || 1} value=${all ? moved : 1} aria-label=${said}></progress>
    <p>${sayLeft(drain, all)} ${failed > 0 && html`<strong>${whole(failed)} did not leave when asked.</strong>`}${" "}
      <span class="quiet">Since ${moment(since)}.</span></p>
    ${blocked.length > 0 && html`<${Blocked} blocked=${blocked} />`}
    <div class="actions"><button onClick=${() => stopDrain(broker)}>Stop the drain…</button></div>
  </section>`;
}

function sayLeft({ state, bundlesLeft, ratePerS, etaS }, all) {
  if (state === "done") return "It owns nothing, and may be stopped.";
  const left = `${whole(bundlesLeft)} of ${whole(all)} bundles are left`;
  if (state === "blocked") return `${left}.`;
  return etaS === null
    ? `${left}; nothing has moved yet, so there is no estimate.`
    : `${left}, done in about ${duration(etaS)} at ${ratePerS.toFixed(1)} bundles/s.`;
}

const Blocked = ({ blocked }) => html`<h3>What stays, and why</h3>
  <ul class="blocked">${blocked.map(({ bundle, why }) => html`<li><${SubjectLink} name=${bundle} />: ${why}</li>`)}</ul>
  ${blocked.length >= TOLD && html`<p class="quiet">and more</p>`}`;

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
  return html`<section class="card" aria-label="Begin a drain">
    <h2>Begin a drain</h2>
    <div class="tools">
      <label>Broker <${BrokerSelect} value=${broker} choose=${(value) => adjust({ broker: value })} without=${draining} /></label>
      <button disabled=${!broker || current?.isAsked} onClick=${work}>Estimate</button>
      <button class="primary" disabled=${!broker} onClick=${() => drain(broker)}>Drain…</button>
    </div>
    <${Problem} problem=${current?.problem} />
    ${current?.plan && html`<${Estimate} plan=${current.plan} />`}
  </section>`;
}

function Estimate({ plan: { hash, steps, effect, verdicts } }) {
  const stays = verdicts.filter((each) => !each.acted).slice(0, TOLD);
  return html`<p class="lead">${whole(steps.length)} bundles would move, ${whole(effect.clientsDisturbed)} clients would connect
      again; the imbalance of the others would go from ${factor(effect.imbalanceBefore)} to${" "}
      ${factor(effect.imbalanceAfter)}. <a href=${linkTo("plans", [hash])}>The moves</a></p>
    ${stays.map((each) => html`<p class="rule">${each.subject}: ${each.sentence}</p>`)}`;
}
