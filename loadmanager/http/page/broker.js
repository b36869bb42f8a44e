// A broker's card: how it stands, what a round would take from it, what keeps bundles from it, and the bundles it owns with their load.

import { drain, exclude, holdOff, include, letGo, stopDrain } from "./actions.js";
import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { DecisionList } from "./decisions.js";
import { Problem } from "./dialogs.js";
import { DrainProgress } from "./drains.js";
import { Explained, Fact, Standings, Verdicts } from "./explained.js";
import { Meter, Notice, linesOf, rowOf } from "./fleet.js";
import { RESOURCES } from "./fleet_words.js";
import { bytesPerS, duration, percent, perS, said, short, whole } from "./format.js";
import { fleet, operations } from "./live.js";
import { BrokerLink, Facts, State, SubjectLink, Waiting } from "./parts.js";
import { linkTo, linkToSubject } from "./route.js";
import { Rows } from "./rows.js";
import { html, useCell } from "./ui.js";

export function BrokerView({ broker }) {
  const now = useCell(fleet);
  const at = now?.brokers.id.indexOf(broker) ?? -1;
  const row = at < 0 ? null : rowOf(now.brokers, at);
  const lines = now ? linesOf(now) : {};
  const drained = now?.drains.find((each) => each.broker === broker);
  return html`<p class="crumbs"><a href=${linkTo("fleet")}>Fleet</a></p>
    <h1><span class="name">${broker}</span> ${row && html`<${State} state=${row.state} />`}</h1>
    ${now && !row && html`<${Notice} kind="warn" title="Not registered">This broker is not there at the moment.<//>`}
    ${row && html`<${Usage} row=${row} lines=${lines} />`}
    <${Actions} broker=${broker} drained=${drained} />
    ${drained && html`<${DrainProgress} drain=${drained} />`}
    <${Expectation} broker=${broker} />
    <${Owned} broker=${broker} />
    <section aria-label="Decisions"><h2>Decisions about it</h2><${DecisionList} subject=${broker} /></section>`;
}

// The mean and the bound are of the resource that is used most.
function Usage({ row, lines }) {
  const meter = ([key, name]) => html`<span>${name}</span>
    <${Meter} value=${row[key]} lines=${row.of === name ? lines : {}} state=${row.state} />`;
  return html`<section class="card" aria-label="Usage">
    <div class="meters">${RESOURCES.map(meter)}</div>
    <p class="quiet">${whole(row.bundles)} bundles, ${short(row.msgRate)} messages/s, ${bytesPerS(row.throughput)}</p>
  </section>`;
}

function Actions({ broker, drained }) {
  const changes = useCell(operations).length; // somebody may have changed the controls
  const { answer, again } = useAnswer((signal) => get(`${OURS}/controls`, {}, signal), [changes]);
  const isExcluded = answer?.excluded.includes(broker);
  const isHeld = answer && Object.hasOwn(answer.heldOff, broker);
  const button = (text, act) => html`<button onClick=${() => act(broker, again)}>${text}</button>`;
  return html`<div class="actions" role="group" aria-label="Change">
    ${drained ? button("Stop the drain…", stopDrain) : button("Drain…", drain)}
    ${isExcluded ? button("Include again…", include) : button("Exclude…", exclude)}
    ${button(isHeld ? "Hold off longer…" : "Hold off…", holdOff)}
    ${isHeld && button("Hold off no more…", letGo)}
    <a class="button" href=${linkTo("heat")}>Heat map</a>
  </div>`;
}

function Expectation({ broker }) {
  const { answer, problem, again, isLoading } = useAnswer(
    (signal) => get(`${OURS}/explain/broker/${encodeURIComponent(broker)}`, {}, signal),
    [broker],
  );
  if (problem) return html`<${Problem} problem=${problem} />`;
  if (!answer) return html`<${Waiting} />`;
  const { wouldShed, obstacles, sheddingStrategy, verdicts, certificate, thresholds } = answer;
  return html`<section class="card" aria-label="The next round">
    <h2>The next round <button class="plain" disabled=${isLoading} onClick=${again}>Ask again</button></h2>
    <p class="lead">${sayRound(answer)}</p>
    <ul>${wouldShed.slice(0, 20).map((each) => html`<li><${Shed} ...${each} /></li>`)}</ul>
    <p>${sayTaking(answer)}</p>
    ${obstacles.map((each) => html`<${Explained} rule=${each} kind="held" />`)}
    <${Verdicts} title=${`What ${sheddingStrategy} says`} rules=${verdicts} />
    <${Verdicts} title="Gap to the best possible plan" rules=${[certificate]} />
    <details><summary>The settings that decide</summary>
      <${Facts} facts=${Object.entries(thresholds).map(([key, value]) => [key, said(value)])} />
    </details>
    <${Fact} name="usage, as the strategy sees it" value=${percent(answer.usagePercent)} />
    <${Standings} standings=${[answer.standing]} hasNamespace=${false} /></section>`;
}

function sayRound({ wouldShed, margin }) {
  const count = wouldShed.length;
  if (count) return `A round now would take ${whole(count)} bundle${count > 1 ? "s" : ""} from it.`;
  return margin ? margin.sentence : "A round now would take nothing from it.";
}

const sayTaking = ({ takesBundles, isOverloaded, bundlesWaitS }) =>
  [
    isOverloaded && "It counts as overloaded, so others come first.",
    bundlesWaitS && `Its bundles wait for it for ${duration(bundlesWaitS)} more.`,
    takesBundles ? "It may be given bundles." : "Nothing is given to it:",
  ]
    .filter(Boolean)
    .join(" ");

const Shed = ({ bundle, destination }) => html`<${SubjectLink} name=${bundle} />
  ${destination && html` to <${BrokerLink} name=${destination} />`}`;

const OWNED = [
  ["name", "Bundle", "c-name"],
  ["share", "Share of its load", "c-bar"],
  ["msgRate", "Messages", "number"],
  ["throughput", "Bytes", "number"],
  ["state", "", ""],
];

const cellsOfOwned = ({ name, share, msgRate, throughput, is_controlled, broker_assignment, is_active }) => [
  html`<${SubjectLink} name=${name} tabindex="-1" />`,
  html`<${Meter} value=${share} />`,
  perS(msgRate),
  bytesPerS(throughput),
  [is_controlled && broker_assignment, !is_active && "moving"].filter(Boolean).join(", "),
];

// The bundles that a broker owns, the one with the most bytes first. What it has not reported is unknown.
async function ownedBundles(broker, signal) {
  const [owned, { lastStats }] = await Promise.all([
    get(`/admin/v2/brokers/any/${encodeURIComponent(broker)}/ownedNamespaces`, {}, signal),
    get("/admin/v2/broker-stats/load-report", { brokerId: broker }, signal),
  ]);
  const sum = (stats, name) => (stats ? (stats[`${name}In`] ?? 0) + (stats[`${name}Out`] ?? 0) : null);
  const bundles = Object.entries(owned).map(([name, status]) => {
    const stats = lastStats?.[name];
    return { name, ...status, msgRate: sum(stats, "msgRate"), throughput: sum(stats, "msgThroughput") };
  });
  const whole = bundles.reduce((all, each) => all + each.throughput, 0);
  return bundles
    .map((each) => ({ ...each, share: each.throughput === null ? null : (100 * each.throughput) / (whole || 1) }))
    .sort((a, b) => b.throughput - a.throughput || (a.name < b.name ? -1 : 1));
}

function Owned({ broker }) {
  const brokers = useCell(fleet)?.brokers;
  const row = brokers?.id.indexOf(broker);
  const { answer, problem } = useAnswer(
    (signal) => ownedBundles(broker, signal),
    [broker, brokers?.bundles[row], brokers?.reportedAt[row]],
  );
  const bundles = answer ?? [];
  if (problem?.status === 404) return null;
  return html`<section aria-label="Bundles">
    <h2>Its bundles</h2>
    <${Problem} problem=${problem} />
    ${
      bundles.length > 0
        ? html`<${Rows} label="Bundles" className="of-bundles" columns=${OWNED} items=${bundles} cells=${cellsOfOwned}
            keyOf=${(each) => each.name} link=${(each) => linkToSubject(each.name)} />`
        : html`<p class="quiet">It owns none.</p>`
    }
  </section>`;
}
