// A broker's card: how it stands, what a round would take from it, what keeps bundles from it, and what it owns.

import { drain, exclude, holdOff, include, letGo, stopDrain } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { DecisionList } from "./decisions.js";
import { Problem } from "./dialogs.js";
import { DrainProgress } from "./drains.js";
import { Explained, Fact, Standings, Verdicts } from "./explained.js";
import { Meter, Notice, RESOURCES, State, linesOf, rowOf } from "./fleet.js";
import { bytesPerS, duration, percent, perS, said, whole } from "./format.js";
import { fleet, operations } from "./live.js";
import { linkTo } from "./route.js";
import { Rows } from "./rows.js";
import { html, useCell, useMemo } from "./ui.js";

export function BrokerView({ broker }) {
  const now = useCell(fleet);
  const at = now?.brokers.id.indexOf(broker) ?? -1;
  const row = at < 0 ? null : rowOf(now.brokers, at);
  const lines = now ? linesOf(now) : {};
  const drained = now?.drains.find((each) => each.broker === broker);
  return html`<p class="crumbs"><a href=${linkTo("fleet")}>Fleet</a></p>
    <h1><span class="name">${broker}</span> ${row && html`<${State} state=${row.state} />`}</h1>
    ${now && !row && html`<${Notice} kind="warn" title="Not registered">This broker is not there at the moment.<//>`}
    ${row && html`<section class="card" aria-label="Usage"><div class="meters">${RESOURCES.map(([key, name]) => html`<span>${name}</span><${Meter} value=${row[key]} lines=${row.of === name ? lines : {}} state=${row.state} />`)}</div>
      <p class="quiet">${whole(row.bundles)} bundles, ${perS(row.msgRate)} messages, ${bytesPerS(row.throughput)}</p></section>`}
    <${Actions} broker=${broker} drained=${drained} />
    ${drained && html`<${DrainProgress} drain=${drained} />`}
    <${Expectation} broker=${broker} />
    <${Owned} broker=${broker} />
    <section aria-label="Decisions"><h2>Decisions about it</h2><${DecisionList} subject=${broker} /></section>`;
}

function Actions({ broker, drained }) {
  const changes = useCell(operations).length; // somebody may have changed the controls
  const { answer, again } = useAnswer((signal) => get(`${OURS}/controls`, {}, signal), [changes]);
  const isExcluded = answer?.excluded.includes(broker);
  const isHeld = answer && Object.hasOwn(answer.heldOff, broker);
  return html`<div class="actions" role="group" aria-label="Change">
    ${drained ? html`<button onClick=${() => stopDrain(broker, again)}>Stop the drain…</button>` : html`<button onClick=${() => drain(broker, again)}>Drain…</button>`}
    ${isExcluded ? html`<button onClick=${() => include(broker, again)}>Include again…</button>` : html`<button onClick=${() => exclude(broker, again)}>Exclude…</button>`}
    <button onClick=${() => holdOff(broker, again)}>${isHeld ? "Hold off longer…" : "Hold off…"}</button>
    ${isHeld && html`<button onClick=${() => letGo(broker, again)}>Hold off no more…</button>`}
    <a class="button" href=${linkTo("heat")}>Heat map</a>
  </div>`;
}

function Expectation({ broker }) {
  const { answer, problem, again, isLoading } = useAnswer((signal) => get(`${OURS}/explain/broker/${encodeURIComponent(broker)}`, {}, signal), [broker]);
  if (problem) return html`<${Problem} problem=${problem} />`;
  if (!answer) return html`<p class="quiet">Asking the leader…</p>`;
  const { wouldShed, margin, obstacles, takesBundles, certificate, thresholds, bundlesWaitS } = answer;
  return html`<section class="card" aria-label="What it has to expect"><h2>What it has to expect <button class="plain" disabled=${isLoading} onClick=${again}>Ask again</button></h2>
    <p class="lead">${wouldShed.length ? `A round now would take ${whole(wouldShed.length)} bundle${wouldShed.length > 1 ? "s" : ""} from it.` : margin ? margin.sentence : "A round now would take nothing from it."}</p>
    ${wouldShed.length > 0 && html`<ul>${wouldShed.slice(0, 20).map((each) => html`<li><a href=${linkTo("bundle", each.bundle.split("/"))}>${each.bundle}</a>${each.destination ? html` to <a href=${linkTo("broker", [each.destination])}>${each.destination}</a>` : ""}</li>`)}</ul>`}
    <p>${takesBundles ? "It may be given bundles." : "Nothing is given to it:"}${answer.isOverloaded ? " It counts as overloaded, so others come first." : ""}${bundlesWaitS ? ` Its bundles wait for it for ${duration(bundlesWaitS)} more.` : ""}</p>
    ${obstacles.map((each) => html`<${Explained} rule=${each} />`)}
    <${Verdicts} title=${`What ${answer.sheddingStrategy} says`} rules=${answer.verdicts} />
    <${Verdicts} title="How near a round comes to what no plan can beat" rules=${[certificate]} />
    <details><summary>The settings that decide</summary><dl class="numbers">${Object.entries(thresholds).map(([key, value]) => html`<dt><code>${key}</code></dt><dd>${said(value)}</dd>`)}</dl></details>
    <${Fact} name="usage, as the strategy sees it" value=${percent(answer.usagePercent)} />
    <${Standings} standings=${[answer.standing]} /></section>`;
}

function Owned({ broker }) {
  const changes = useCell(fleet)?.brokers;
  const count = changes ? changes.bundles[changes.id.indexOf(broker)] : 0;
  const { answer, problem } = useAnswer((signal) => get(`/admin/v2/brokers/any/${encodeURIComponent(broker)}/ownedNamespaces`, {}, signal), [broker, count]);
  const bundles = useMemo(() => Object.entries(answer ?? {}).map(([name, status]) => ({ name, ...status })), [answer]);
  if (problem?.status === 404) return null;
  return html`<section aria-label="Bundles"><h2>Its bundles</h2><${Problem} problem=${problem} />
    ${bundles.length > 0 ? html`<${Rows} label="Bundles" className="of-bundles" columns=${[["name", "Bundle", "c-name"], ["policy", "By policy", ""], ["state", "", ""]]} items=${bundles} keyOf=${(each) => each.name}
      link=${(each) => linkTo("bundle", each.name.split("/"))}
      cells=${(each) => [html`<a href=${linkTo("bundle", each.name.split("/"))} tabindex="-1">${each.name}</a>`, each.is_controlled ? each.broker_assignment : "", each.is_active ? "" : "on its way"]} />` : html`<p class="quiet">It owns none.</p>`}</section>`;
}
