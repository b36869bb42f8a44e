// A bundle's card: why it is where it is, the runner-up, what would have to change, and why it is not elsewhere.

import { cancelUnload, freezeBundle, pin, split, thawBundle, transfer, unload, unpin } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, get, segments } from "./api.js";
import { brokersByUsage } from "./asking.js";
import { DecisionList } from "./decisions.js";
import { Problem } from "./dialogs.js";
import { Explained, Fact, Standings, Verdicts } from "./explained.js";
import { bytesPerS, duration, percent, perS, whole, words } from "./format.js";
import { decisions, operations } from "./live.js";
import { adjust, linkTo, route } from "./route.js";
import { html, useCell } from "./ui.js";

export function BundleView({ bundle }) {
  const changes = useCell(decisions).find((each) => each.subject === bundle)?.lastAt; // something has happened to it
  const orders = useCell(operations).length;
  const explained = useAnswer((signal) => get(`${OURS}/explain/bundle/${segments(bundle)}`, {}, signal), [bundle, changes]);
  const controls = useAnswer((signal) => get(`${OURS}/controls`, {}, signal), [bundle, changes, orders]);
  const again = () => (explained.again(), controls.again());
  const { answer } = explained;
  const [namespace, range] = [bundle.split("/").slice(0, 2).join("/"), bundle.split("/")[2]];
  return html`<p class="crumbs"><a href=${linkTo("fleet")}>Fleet</a> / ${namespace}</p>
    <h1><span class="name">${range}</span> ${answer && html`<span class="chip" data-state=${answer.ownership.state}>${answer.ownership.state.toLowerCase()}</span>`}</h1>
    <p class="quiet">bundle of <code>${namespace}</code></p>
    <${Problem} problem=${explained.problem} />
    <${Actions} bundle=${bundle} answer=${answer} controls=${controls.answer} again=${again} />
    ${answer ? html`<${Answer} answer=${answer} again=${again} isLoading=${explained.isLoading} />` : !explained.problem && html`<p class="quiet">Asking the leader…</p>`}
    <${WhyNot} bundle=${bundle} owner=${answer?.ownership.owner} />
    <section aria-label="Decisions"><h2>Decisions about it</h2><${DecisionList} subject=${bundle} /></section>`;
}

function Actions({ bundle, answer, controls, again }) {
  const owner = answer?.ownership.owner;
  const isPinned = controls && Object.hasOwn(controls.pinned, bundle);
  const isFrozen = controls && Object.hasOwn(controls.frozenBundles, bundle);
  return html`<div class="actions" role="group" aria-label="Change">
    <button onClick=${() => transfer(bundle, owner, "", again)}>Transfer…</button>
    <button onClick=${() => unload(bundle, owner, again)}>Unload…</button>
    ${isPinned ? html`<button onClick=${() => unpin(bundle, again)}>Unpin…</button>` : html`<button onClick=${() => pin(bundle, owner, again)}>Pin…</button>`}
    ${isFrozen ? html`<button onClick=${() => thawBundle(bundle, again)}>Lift its freeze…</button>` : html`<button onClick=${() => freezeBundle(bundle, again)}>Freeze…</button>`}
    <button onClick=${() => split(bundle, again)}>Split…</button>
    ${answer?.ownership.state === "Releasing" && html`<button onClick=${() => cancelUnload(bundle, again)}>Cancel the unload…</button>`}
    ${isPinned && html`<span class="chip">pinned to ${controls.pinned[bundle]}</span>`}
    ${isFrozen && html`<span class="chip">frozen: ${controls.frozenBundles[bundle]}</span>`}
  </div>`;
}

function Answer({ answer, again, isLoading }) {
  const { ownership, load, shedding, placement } = answer;
  const age = ownership.ageS === null || ownership.ageS === undefined ? "" : ` for ${duration(ownership.ageS)}`;
  const roles = { ...(placement.chosen ? { [placement.chosen]: "would be chosen" } : {}), ...(ownership.owner ? { [ownership.owner]: ownership.owner === placement.chosen ? "owner, and would be chosen" : "owner" } : {}) };
  return html`<section class="card" aria-label="Why it is where it is"><h2>Why it is where it is <button class="plain" disabled=${isLoading} onClick=${again}>Ask again</button></h2>
    <p class="lead">${ownership.owner ? html`<a href=${linkTo("broker", [ownership.owner])}>${ownership.owner}</a> has had it${age}` : `Nobody has it${age}`}${ownership.destination ? html`, and it is going to <a href=${linkTo("broker", [ownership.destination])}>${ownership.destination}</a>` : ""}${ownership.reason ? `: ${words(ownership.reason)}` : ""}.</p>
    <p>${shedding.wouldMove ? html`A round of shedding now would move it${shedding.destination ? html` to <a href=${linkTo("broker", [shedding.destination])}>${shedding.destination}</a>` : ""}.` : "A round of shedding now would leave it."}</p>
    <${Explained} rule=${shedding.stays} kind=${shedding.staysByRule ? "held" : ""} />
    <${Verdicts} title="What the strategy says of its broker" rules=${shedding.brokerVerdicts} />
    </section>
    <section class="card" aria-label="Where it would be put"><h2>If it left, where it would be put</h2>
    <${Explained} rule=${placement.verdict} kind=${placement.chosen ? "" : "held"} />
    ${placement.runnerUp ? html`<h3>The runner-up</h3><${Explained} rule=${placement.runnerUp} />` : html`<p class="quiet">There is no runner-up.</p>`}
    <${Standings} standings=${placement.standings} roles=${roles} />
    ${Object.entries(placement.dropped).length > 0 && html`<p class="quiet">Filters dropped: ${Object.entries(placement.dropped).map(([filter, count]) => `${words(filter)} ${whole(count)}`).join(", ")}.</p>`}
    </section>
    <section class="card facts" aria-label="Load"><h2>What it carries</h2>
      <${Fact} name="messages in, out" value=${`${perS(load.shortTerm.msgRateIn)}, ${perS(load.shortTerm.msgRateOut)}`} />
      <${Fact} name="bytes in, out" value=${`${bytesPerS(load.shortTerm.msgThroughputIn)}, ${bytesPerS(load.shortTerm.msgThroughputOut)}`} />
      <${Fact} name="over the long term" value=${`${perS(load.longTerm.msgRateIn + load.longTerm.msgRateOut)}, ${bytesPerS(load.longTerm.msgThroughputIn + load.longTerm.msgThroughputOut)}`} />
      <${Fact} name="of its broker, of all" value=${`${percent(load.shareOfBrokerPercent)}, ${percent(load.shareOfClusterPercent)}`} />
      <${Fact} name="topics" value=${whole(load.topics)} />
      ${load.takenFrom && html`<p>${load.takenFrom}</p>`}</section>`;
}

function WhyNot({ bundle, owner }) {
  const { on = "" } = useCell(route).query;
  const { answer, problem } = useAnswer((signal) => (on ? get(`${OURS}/explain/why-not`, { bundle, broker: on }, signal) : Promise.resolve(null)), [bundle, on]);
  return html`<section class="card" aria-label="Why not elsewhere"><h2>Why is it not on another broker?</h2>
    <label>Broker <select value=${on} onInput=${(event) => adjust({ on: event.target.value })}><option value="">choose a broker</option>
      ${brokersByUsage(owner).map(([id, said]) => html`<option value=${id}>${id} · ${said}</option>`)}</select></label>
    <${Problem} problem=${problem} />
    ${on && answer && html`<p class="lead">${answer.answer.sentence}</p>
      ${answer.answer.change && html`<p class="change"><strong>What would have to change:</strong> ${answer.answer.change}</p>`}
      ${answer.obstacles.length > 1 && html`<h3>Everything between the two</h3>${answer.obstacles.map((each) => html`<${Explained} rule=${each} kind="held" />`)}`}
      <${Standings} standings=${answer.standings} roles=${{ [on]: "asked about" }} />
      <button onClick=${() => transfer(bundle, owner, on)}>Transfer it there…</button>`}
  </section>`;
}

