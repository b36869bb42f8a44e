// The fleet at a glance: is it balanced, is anything wrong, who leads, and one bar a broker.

import { endDryRun, freezeAll, liftBreaker, startDryRun, thawAll } from "./actions.js";
import { Bars, Lines } from "./bars.js";
import { ago, bytesPerS, clock, duration, percent, perS, whole } from "./format.js";
import { RESOURCES, stateWords } from "./fleet_words.js";
import { fleet } from "./live.js";
import { BrokerLink, Search, State } from "./parts.js";
import { adjust, linkTo, route } from "./route.js";
import { Rows, useSettled } from "./rows.js";
import { html, useCell, useMemo, useRef, useState } from "./ui.js";

const SETTLE_MS = 5000;
const CAPACITY = 100;
const HOT = 85;
const FEW = 24; // whoever has no more sees all of them in the list

// A broker of the columns in which the fleet comes.
export function rowOf(brokers, row) {
  const broker = Object.fromEntries(Object.entries(brokers).map(([column, values]) => [column, values[row]]));
  broker.of = RESOURCES.reduce((best, each) => ((broker[each[0]] ?? 0) > (broker[best[0]] ?? 0) ? each : best))[1];
  return broker;
}

const ORDERS = {
  highest: (a, b) => (b.highest ?? -1) - (a.highest ?? -1),
  id: (a, b) => (a.id < b.id ? -1 : 1),
  bundles: (a, b) => b.bundles - a.bundles,
  msgRate: (a, b) => b.msgRate - a.msgRate,
  throughput: (a, b) => b.throughput - a.throughput,
  reportedAt: (a, b) => (a.reportedAt ?? 0) - (b.reportedAt ?? 0),
};

export function FleetView() {
  const now = useCell(fleet);
  if (!now) return html`<h1>Fleet</h1><p class="quiet">Waiting for the first update…</p>`;
  return html`<h1 class="hidden">Fleet</h1><${Notices} now=${now} /><${Summary} now=${now} /><${Brokers} now=${now} />`;
}

const NOT_WHOLE = "Drains, the breaker, and who is sick are not known here at the moment.";

function Notices({ now }) {
  const { leader, isWhole, openToAnyone, availableNamespaces = [], faults = {}, unplaceable = [], unserved = [], balancing } = now;
  const { frozen, breaker, dryRun, cannotMove = [], limits = [] } = balancing;
  const unreadable = ([path, sentence]) =>
    html`<${Notice} kind="bad" title="A record cannot be read"><code>${path}</code>: ${sentence}<//>`;
  const notServed = ({ broker, bundles, why, remedy }) =>
    html`<${Notice} kind="bad" title=${`${whole(bundles)} bundles are not served`}>
      <${BrokerLink} name=${broker} /> is stuck: ${why}. To mend it: ${remedy}<//>`;
  return html`<div class="notices">
    ${
      openToAnyone &&
      html`<${Notice} kind="warn" title="Anyone who reaches this node may change anything">
        It asks nobody for a token. Set <code>authenticationEnabled</code>, as <code>docs/security.md</code> describes.<//>`
    }
    ${
      availableNamespaces.length > 0 &&
      html`<${Notice} kind="info" title="Topics of some namespaces may have two owners">
        A broker without a lease keeps serving the open topics of
        ${availableNamespaces.length > 3 ? `${whole(availableNamespaces.length)} namespaces` : availableNamespaces.join(", ")}
        (<code>availableNamespaces</code>).<//>`
    }
    ${!leader && html`<${Notice} kind="bad" title="No leader is known">
      No node is elected, or this one has no lease of ZooKeeper. Without a leader no bundle gets an owner.<//>`}
    ${leader && !isWhole && html`<${Notice} kind="warn" title="The leader does not answer this node">${NOT_WHOLE}<//>`}
    ${
      frozen &&
      html`<${Notice} kind="warn" title="Frozen" button=${["Lift…", thawAll]}>
        “${frozen}”: nothing is shed, split or merged by itself.<//>`
    }
    ${breaker && html`<${Breaker} ...${breaker} />`}
    ${
      dryRun &&
      html`<${Notice} kind="info" title="Dry run" button=${["End…", endDryRun]}>Shedding decides and moves nothing.<//>`
    }
    ${
      cannotMove.length > 0 &&
      html`<${Notice} kind="warn" title="Nothing can move">
        <ul>${cannotMove.map(({ key, sentence }) => html`<li>${sentence} <code>${key}</code></li>`)}</ul><//>`
    }
    ${
      limits.length > 0 &&
      html`<${Notice} kind="info" title="Limits keep bundles in place"><ul>${limits.map(Limit)}</ul><//>`
    }
    ${unplaceable.map(
      ({ sentence }) => html`<${Notice} kind="bad" title="Namespaces without a broker">${sentence}.<//>`,
    )}
    ${unserved.map(notServed)}
    ${Object.entries(faults).map(unreadable)}
  </div>`;
}

const Limit = ({ reason, sentence, until }) =>
  html`<li>${sentence}${until && html`, until ${clock(until)} (${duration(Math.max(until - Date.now(), 0) / 1000)})`} <code>${reason}</code></li>`;

function Breaker({ stoppedS, bundles }) {
  const [title, sentence] = stoppedS
    ? ["The breaker has stopped shedding", `Bundles kept returning; it goes on by itself in ${duration(stoppedS)}.`]
    : ["The breaker has stopped bundles", `${whole(bundles)} kept returning, and are not shed for a time.`];
  return html`<${Notice} kind="warn" title=${title} button=${["Lift…", liftBreaker]}>${sentence}<//>`;
}

const SIGNS = { bad: "✖", warn: "▲", info: "●" };

export const Notice = ({ kind, title, button, children }) =>
  html`<section class="notice" data-kind=${kind}><span class="sign" aria-hidden="true">${SIGNS[kind]}</span>
    <div><strong>${title}.</strong> ${children}</div>
    ${button && html`<button onClick=${button[1]}>${button[0]}</button>`}</section>`;

export const hottestOf = ({ brokers }) => brokers.highest.reduce((most, value) => Math.max(most, value ?? 0), 0);

// The mean, and what the last round could not have beaten; null once the load has fallen below that.
export function linesOf(now) {
  const isBound = now.lowerBound !== null && now.lowerBound !== undefined && now.lowerBound <= hottestOf(now);
  return { mean: now.mean ?? null, lowerBound: isBound ? now.lowerBound : null, capacity: CAPACITY, hot: HOT };
}

function Summary({ now }) {
  const { brokers, leader, balancing, drains, nodes, bundles, unowned, movingInAll, size } = now;
  const { mean, lowerBound } = linesOf(now);
  const hottest = hottestOf(now);
  const resting = brokers.state.filter((state) => state !== "active").length;
  const bound = lowerBound === null ? "" : `, best possible ${percent(lowerBound)}`;
  const owned = unowned ? `${whole(unowned)} not yet assigned` : "all have an owner";
  const heat = hottest > CAPACITY ? "bad" : hottest > HOT ? "warn" : "";
  const names = drains.slice(0, 2).map((each) => each.broker);
  const count = `${whole(nodes.length)} node${nodes.length === 1 ? "" : "s"}`;
  return html`<section class="figures" aria-label="At a glance">
    <${Figure} name="Hottest" value=${percent(hottest)} kind=${heat}>mean ${percent(mean)}${bound}<//>
    <${Figure} name="Brokers" value=${whole(brokers.id.length)}>
      ${resting ? `${resting} not taking part` : "all take part"}${size && html`, <span title=${size.sentence}>${size.needed} needed</span>`}<//>
    <${Figure} name="Bundles" value=${whole(bundles)} kind=${unowned && !leader ? "warn" : ""}>
      ${owned}${movingInAll ? `, ${whole(movingInAll)} moving` : ""}<//>
    <${Balancing} ...${balancing} />
    <${Figure} name="Drains" value=${whole(drains.length)}>
      <a href=${linkTo("drains")}>${names.join(", ") || "none under way"}</a><//>
    <${Figure} name="Leader" value=${html`<span class="name">${leader?.id ?? "none"}</span>`} kind=${leader ? "" : "bad"}>
      ${leader ? `epoch ${leader.epoch}, ` : ""}${count}<//>
  </section>`;
}

function Balancing({ frozen, breaker, dryRun, cannotMove = [], limits = [] }) {
  const states = [
    ["frozen", frozen],
    ["stopped", breaker?.stoppedS],
    ["dry run", dryRun],
    ["blocked", cannotMove.length],
    ["limited", limits.length],
  ];
  const said = states.find(([, isSo]) => isSo)?.[0] ?? "on";
  return html`<${Figure} name="Balancing" value=${said} kind=${said === "on" ? "" : "warn"}>
    ${!frozen && html`<button class="plain" onClick=${freezeAll}>Freeze…</button>`}${" "}
    ${!dryRun && html`<button class="plain" onClick=${startDryRun}>Dry run…</button>`}<//>`;
}

export const Figure = ({ name, value, kind = "", children }) => html`<div class="figure" data-kind=${kind}>
  <h2>${name}</h2>
  <p class="value">${kind && html`<span class="sign" aria-hidden="true">${SIGNS[kind]} </span>`}${value}</p>
  <p class="quiet">${children}</p>
</div>`;

// All of them at once above the list, where the list is longer than a screen; both in one order.
function Brokers({ now }) {
  const { sort = "highest", filter = "" } = useCell(route).query;
  const list = useRef();
  const [isHeld, hold] = useState(false);
  const rows = useMemo(() => now.brokers.id.map((_, row) => rowOf(now.brokers, row)), [now]);
  const order = useMemo(() => [...rows].sort(ORDERS[sort] ?? ORDERS.highest).map((row) => row.id), [rows, sort]);
  const settled = useSettled(order, SETTLE_MS, () => isHeld || list.current?.contains(document.activeElement), [
    sort,
    rows.length,
    isHeld,
  ]);
  const byId = useMemo(() => new Map(rows.map((row) => [row.id, row])), [rows]);
  const shown = useMemo(
    () => settled.map((id) => byId.get(id)).filter((row) => row && matches(row, filter)),
    [settled, byId, filter],
  );
  const lines = linesOf(now);
  const label = `Usage of ${shown.length} brokers, each by its most used resource; the list below says the same`;
  return html`<section class="brokers" ref=${list} onPointerEnter=${() => hold(true)} onPointerLeave=${() => hold(false)}>
    ${rows.length > FEW && html`<${Bars} rows=${shown} lines=${lines} label=${label} />`}
    <div class="tools">
      <${Search} label="Show" placeholder="name or state" value=${filter} change=${(value) => adjust({ filter: value })} />
      <span class="quiet">${whole(shown.length)} of ${whole(rows.length)}</span>
      <${Lines} lines=${lines} />
    </div>
    <${Rows} label="Brokers" className="of-brokers" columns=${COLUMNS} items=${shown}
      cells=${(row) => cellsOf(row, lines, now.at)} keyOf=${(row) => row.id} link=${(row) => linkTo("broker", [row.id])}
      sort=${sort} onSort=${(key) => adjust({ sort: key })} />
  </section>`;
}

const matches = (row, filter) =>
  !filter || row.id.includes(filter) || stateWords(row.state).includes(filter.toLowerCase());

const COLUMNS = [
  ["id", "Broker", "c-name"],
  ["highest", "Highest resource", "c-bar"],
  ["of", "", "c-of"],
  ["bundles", "Bundles", "c-bundles number"],
  ["msgRate", "Messages", "c-rate number"],
  ["throughput", "Bytes", "c-bytes number"],
  ["reportedAt", "Report", "c-report number"],
];

function cellsOf(row, lines, at) {
  return [
    html`<${BrokerLink} name=${row.id} tabindex="-1" /> <${State} state=${row.state} />`,
    html`<${Meter} value=${row.highest} lines=${lines} state=${row.state} />`,
    row.of,
    whole(row.bundles),
    perS(row.msgRate),
    bytesPerS(row.throughput),
    row.reportedAt ? ago(row.reportedAt, at) : "never",
  ];
}

// A bar with the mean and the bound on it, and the figure beside it.
export function Meter({ value, lines: { mean = null, lowerBound = null } = {}, state = "active" }) {
  const kind = state !== "active" ? "resting" : value > CAPACITY ? "over" : value > HOT ? "hot" : "";
  const per = (share) => `${Math.min(Math.max(share ?? 0, 0), 100)}%`;
  return html`<div class="meter" data-kind=${kind}>
    <div class="track">
      <div class="fill" style=${{ width: per(value) }}></div>
      ${lowerBound !== null && html`<i class="bound" style=${{ left: per(lowerBound) }}></i>`}
      ${mean !== null && html`<i class="mean" style=${{ left: per(mean) }}></i>`}
    </div>
    <span class="number">${{ over: "✖ ", hot: "▲ " }[kind] ?? ""}${value === null ? "unknown" : percent(value)}</span>
  </div>`;
}
