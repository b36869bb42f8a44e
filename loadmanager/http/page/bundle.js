// A bundle's card: why it is where it is, the runner-up, what would have to change, and why it is not elsewhere.

import { cancelUnload, freezeBundle, pin, split, thawBundle, transfer, unload, unpin } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, get, segments } from "./api.js";
import { DecisionList } from "./decisions.js";
import { Problem } from "./dialogs.js";
import { Change, Explained, Fact, Standings, Verdicts } from "./explained.js";
import { bytesPerS, duration, percent, perS, whole, words } from "./format.js";
import { decisions, operations } from "./live.js";
import { BrokerLink, BrokerSelect, Chip, Waiting } from "./parts.js";
import { adjust, linkTo, route } from "./route.js";
import { html, useCell } from "./ui.js";

export function BundleView({ bundle }) {
  const changes = useCell(decisions).find((each) => each.subject === bundle)?.lastAt; // something has happened to it
  const orders = useCell(operations).length;
  const explained = useAnswer(
    (signal) => get(`${OURS}/explain/bundle/${segments(bundle)}`, {}, signal),
    [bundle, changes],
  );
  const controls = useAnswer((signal) => get(`${OURS}/controls`, {}, signal), [bundle, changes, orders]);
  const again = () => (explained.again(), controls.again());
  const { answer } = explained;
  const state = answer?.ownership.state;
  const [namespace, range] = [bundle.split("/").slice(0, 2).join("/"), bundle.split("/")[2]];
  return html`<p class="crumbs"><a href=${linkTo("fleet")}>Fleet</a> / ${namespace}</p>
    <h1><span class="name">${range}</span> ${answer && html`<${Chip} state=${state}>${state.toLowerCase()}<//>`}</h1>
    <p class="quiet">bundle of <code>${namespace}</code></p>
    <${Problem} problem=${explained.problem} />
    <${Actions} bundle=${bundle} answer=${answer} controls=${controls.answer} again=${again} />
    ${answer && html`<${Why} ...${answer} again=${again} isLoading=${explained.isLoading} />`}
    ${answer && html`<${Placement} ...${answer} /><${Load} load=${answer.load} />`}
    ${!answer && !explained.problem && html`<${Waiting} />`}
    <${WhyNot} bundle=${bundle} owner=${answer?.ownership.owner} />
    <section aria-label="Decisions"><h2>Decisions about it</h2><${DecisionList} subject=${bundle} /></section>`;
}

function Actions({ bundle, answer, controls, again }) {
  const owner = answer?.ownership.owner;
  const isPinned = controls && Object.hasOwn(controls.pinned, bundle);
  const isFrozen = controls && Object.hasOwn(controls.frozenBundles, bundle);
  const button = (text, act) => html`<button onClick=${act}>${text}</button>`;
  return html`<div class="actions" role="group" aria-label="Change">
    ${button("Transfer…", () => transfer(bundle, owner, "", again))}
    ${button("Unload…", () => unload(bundle, owner, again))}
    ${isPinned ? button("Unpin…", () => unpin(bundle, again)) : button("Pin…", () => pin(bundle, owner, again))}
    ${
      isFrozen
        ? button("Lift its freeze…", () => thawBundle(bundle, again))
        : button("Freeze…", () => freezeBundle(bundle, again))
    }
    ${button("Split…", () => split(bundle, again))}
    ${answer?.ownership.state === "Releasing" && button("Cancel the unload…", () => cancelUnload(bundle, again))}
    ${isPinned && html`<${Chip}>pinned to ${controls.pinned[bundle]}<//>`}
    ${isFrozen && html`<${Chip}>frozen: ${controls.frozenBundles[bundle]}<//>`}
  </div>`;
}

// The reason of the last change of owners, said of the one before; any other reason is said in its own words.
const OVERLOADED = ", which was overloaded";
const CAUSES = {
  overloaded: OVERLOADED,
  broker_overloaded: OVERLOADED,
  broker_above_average: OVERLOADED,
  above_level: OVERLOADED,
  drain: ", which was drained",
  owner_gone: ", which was gone",
  admin_unload: " by an operator",
  plan_executed: " by a plan",
};

function Cause({ ownership: { owner, reason }, decisions }) {
  if (!owner || !reason) return null;
  if (reason === "lookup") return "; assigned at a lookup";
  const before = decisions.find((each) => each.acted && each.source && each.source !== owner)?.source;
  return html`; moved${before && html` from <${BrokerLink} name=${before} />`}${CAUSES[reason] ?? `: ${words(reason)}`}`;
}

function Why({ ownership, decisions, shedding, again, isLoading }) {
  const { owner, destination, ageS } = ownership;
  const age = ageS === null || ageS === undefined ? "" : ` for ${duration(ageS)}`;
  return html`<section class="card" aria-label="Why it is here">
    <h2>Why it is here <button class="plain" disabled=${isLoading} onClick=${again}>Ask again</button></h2>
    <p class="lead">${owner ? html`On <${BrokerLink} name=${owner} />${age}` : `Without an owner${age}`}${
      destination ? html`; moving to <${BrokerLink} name=${destination} />` : html`<${Cause} ...${{ ownership, decisions }} />`
    }.</p>
    <p>A round of shedding now would ${shedding.wouldMove ? "move it" : "leave it"}${
      shedding.destination && html` to <${BrokerLink} name=${shedding.destination} />`
    }.</p>
    <${Explained} rule=${shedding.stays} kind=${shedding.staysByRule ? "held" : ""} />
    <${Verdicts} title="The strategy on its broker" rules=${shedding.brokerVerdicts} />
  </section>`;
}

function Placement({ ownership: { owner }, placement: { chosen, verdict, runnerUp, standings, dropped } }) {
  const roles = { [chosen]: "would be chosen", [owner]: owner === chosen ? "owner, and would be chosen" : "owner" };
  const filters = Object.entries(dropped).map(([filter, count]) => `${words(filter)} ${whole(count)}`);
  return html`<section class="card" aria-label="Placement">
    <h2>Placement after an unload</h2>
    <${Explained} rule=${verdict} kind=${chosen ? "" : "held"} />
    <h3>${runnerUp ? "The runner-up" : "There is no runner-up"}</h3>
    <${Explained} rule=${runnerUp} />
    <${Standings} standings=${standings} roles=${roles} />
    ${filters.length > 0 && html`<p class="quiet">Filters dropped: ${filters.join(", ")}.</p>`}
  </section>`;
}

function Load({ load: { shortTerm, longTerm, shareOfBrokerPercent, shareOfClusterPercent, topics, takenFrom } }) {
  const messages = longTerm.msgRateIn + longTerm.msgRateOut;
  const bytes = longTerm.msgThroughputIn + longTerm.msgThroughputOut;
  const pair = (say, a, b) => `${say(a)}, ${say(b)}`;
  return html`<section class="card facts" aria-label="Load">
    <h2>Load</h2>
    <${Fact} name="messages in, out" value=${pair(perS, shortTerm.msgRateIn, shortTerm.msgRateOut)} />
    <${Fact} name="bytes in, out" value=${pair(bytesPerS, shortTerm.msgThroughputIn, shortTerm.msgThroughputOut)} />
    <${Fact} name="over the long term" value=${`${perS(messages)}, ${bytesPerS(bytes)}`} />
    <${Fact} name="of its broker, of all" value=${pair(percent, shareOfBrokerPercent, shareOfClusterPercent)} />
    <${Fact} name="topics" value=${whole(topics)} />
    ${takenFrom && html`<p>${takenFrom}</p>`}
  </section>`;
}

function WhyNot({ bundle, owner }) {
  const { on = "" } = useCell(route).query;
  const { answer, problem } = useAnswer(
    (signal) => (on ? get(`${OURS}/explain/why-not`, { bundle, broker: on }, signal) : Promise.resolve(null)),
    [bundle, on],
  );
  return html`<section class="card" aria-label="Why not elsewhere">
    <h2>Why is it not on another broker?</h2>
    <label>Broker${" "}
      <${BrokerSelect} value=${on} choose=${(value) => adjust({ on: value })} without=${owner ? [owner] : []} /></label>
    <${Problem} problem=${problem} />
    ${on && answer && html`<${NotThere} ...${answer} />
      <button onClick=${() => transfer(bundle, owner, on)}>Transfer it there…</button>`}
  </section>`;
}

const NotThere = ({ answer, obstacles, standings, brokerId }) => html`<p class="lead">${answer.sentence}</p>
  <${Change} rule=${answer} />
  ${
    obstacles.length > 1 &&
    html`<h3>Everything between the two</h3>${obstacles.map((each) => html`<${Explained} rule=${each} kind="held" />`)}`
  }
  <${Standings} standings=${standings} roles=${{ [brokerId]: "asked about" }} />`;
