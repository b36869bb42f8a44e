// The fleet at a glance: is it balanced, is anything wrong, who leads, and one bar a broker.

import { endDryRun, freezeAll, liftBreaker, startDryRun, thawAll } from "./actions.js";
import { Bars, Lines } from "./bars.js";
import { ago, bytesPerS, duration, percent, perS, whole } from "./format.js";
import { fleet } from "./live.js";
import { adjust, linkTo, route } from "./route.js";
import { Rows, useSettled } from "./rows.js";
import { html, useCell, useMemo, useRef, useState } from "./ui.js";

export const RESOURCES = [["cpu", "CPU"], ["memory", "memory"], ["directMemory", "direct memory"], ["bandwidthIn", "network in"], ["bandwidthOut", "network out"]];
const STATES = { active: "", held_off: "held off", doubted: "reports doubted", unreadable: "nothing readable" };
const SETTLE_MS = 5000;
const CAPACITY = 100;
const FEW = 24; // whoever has no more sees all of them in the list

export const stateWords = (state) => STATES[state] ?? state.replace(/_/g, " ");
export const State = ({ state }) => (stateWords(state) ? html`<span class="chip" data-state=${state}>${stateWords(state)}</span>` : null);

// A broker of the columns in which the fleet comes.
export function rowOf(brokers, row) {
  const broker = Object.fromEntries(Object.entries(brokers).map(([column, values]) => [column, values[row]]));
  broker.state ??= "active";
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
  if (!now) return html`<h1>Fleet</h1><p class="quiet">Waiting for the first word of the node…</p>`;
  return html`<h1 class="hidden">Fleet</h1><${Notices} now=${now} /><${Summary} now=${now} /><${Brokers} now=${now} />`;
}

function Notices({ now }) {
  const { frozen, breaker, dryRun, cannotMove = [] } = now.balancing;
  return html`<div class="notices">
    ${!now.leader && html`<${Notice} kind="bad" title="Nobody leads">No bundle gets an owner, and nothing is balanced, until a node is elected.<//>`}
    ${frozen && html`<${Notice} kind="warn" title="Frozen" button=${["Lift…", thawAll]}>${frozen === true ? "" : `“${frozen}”: `}nothing is shed, split or merged by itself.<//>`}
    ${now.leader && now.isWhole === false && html`<${Notice} kind="warn" title="The leader does not answer this node">Drains, the breaker, and who is sick are not known here at the moment.<//>`}
    ${breaker && html`<${Notice} kind="warn" title=${breaker.stoppedS ? "The breaker has stopped shedding" : "The breaker has stopped bundles"} button=${["Lift…", liftBreaker]}>
      ${breaker.stoppedS ? `Bundles kept returning; shedding goes on by itself in ${duration(breaker.stoppedS)}.` : `${whole(breaker.bundles)} kept returning, and are not shed for a time.`}<//>`}
    ${now.poison > 0 && html`<${Notice} kind="warn" title="Poison">${whole(now.poison)} bundle${now.poison > 1 ? "s are" : " is"} given to nobody, since their last owners died soon after they got them: <code>loadmanager admin balancer poison</code><//>`}
    ${dryRun && html`<${Notice} kind="info" title="Dry run" button=${["End…", endDryRun]}>Shedding decides and moves nothing.<//>`}
    ${cannotMove.length > 0 && html`<${Notice} kind="warn" title="Nothing can move">
      <ul>${cannotMove.map(({ key, sentence }) => html`<li>${sentence} <code>${key}</code></li>`)}</ul><//>`}
    ${Object.entries(now.faults ?? {}).map(([path, sentence]) => html`<${Notice} kind="bad" title="A record cannot be read"><code>${path}</code>: ${sentence}<//>`)}
  </div>`;
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
  return { mean: now.mean ?? null, lowerBound: isBound ? now.lowerBound : null, capacity: CAPACITY };
}

function Summary({ now }) {
  const { brokers, leader, balancing } = now;
  const { mean, lowerBound } = linesOf(now);
  const resting = brokers.state.filter((state) => state && state !== "active").length;
  const hottest = hottestOf(now);
  const isOn = !balancing.frozen && !balancing.dryRun && !balancing.breaker?.stoppedS;
  return html`<section class="figures" aria-label="At a glance">
    <${Figure} name="Hottest" value=${percent(hottest)} kind=${hottest > CAPACITY ? "bad" : hottest > 85 ? "warn" : ""}>mean ${percent(mean)}${lowerBound === null ? "" : `, no plan below ${percent(lowerBound)}`}<//>
    <${Figure} name="Brokers" value=${whole(brokers.id.length)}>${resting ? `${resting} not taking part` : "all take part"}<//>
    <${Figure} name="Bundles" value=${whole(now.bundles)} kind=${now.unowned && !leader ? "warn" : ""}>${now.unowned ? `${whole(now.unowned)} without an owner` : "all have an owner"}${now.movingInAll ? `, ${whole(now.movingInAll)} moving` : ""}<//>
    <${Figure} name="Balancing" value=${isOn ? "on" : balancing.frozen ? "frozen" : balancing.breaker?.stoppedS ? "stopped" : "dry run"} kind=${isOn ? "" : "warn"}>
      ${!balancing.frozen && html`<button class="plain" onClick=${freezeAll}>Freeze…</button>`}${" "}
      ${!balancing.dryRun && html`<button class="plain" onClick=${startDryRun}>Dry run…</button>`}<//>
    <${Figure} name="Drains" value=${whole(now.drains.length)}><a href=${linkTo("drains")}>${now.drains.length ? now.drains.map((each) => each.broker).slice(0, 2).join(", ") : "none under way"}</a><//>
    <${Figure} name="Leader" value=${leader ? html`<span class="name">${leader.id}</span>` : "none"} kind=${leader ? "" : "bad"}>${leader ? `epoch ${leader.epoch}, ` : ""}${whole(now.nodes.length)} node${now.nodes.length === 1 ? "" : "s"}<//>
  </section>`;
}

export const Figure = ({ name, value, kind = "", children }) =>
  html`<div class="figure" data-kind=${kind}><h2>${name}</h2><p class="value">${kind ? html`<span class="sign" aria-hidden="true">${SIGNS[kind]} </span>` : null}${value}</p><p class="quiet">${children}</p></div>`;

// All of them at once above the list, where the list is longer than a screen; both in one order.
function Brokers({ now }) {
  const { sort = "highest", filter = "" } = useCell(route).query;
  const list = useRef();
  const [isHeld, hold] = useState(false);
  const rows = useMemo(() => now.brokers.id.map((_, row) => rowOf(now.brokers, row)), [now]);
  const order = useMemo(() => [...rows].sort(ORDERS[sort] ?? ORDERS.highest).map((row) => row.id), [rows, sort]);
  const settled = useSettled(order, SETTLE_MS, () => isHeld || list.current?.contains(document.activeElement), [sort, rows.length, isHeld]);
  const byId = useMemo(() => new Map(rows.map((row) => [row.id, row])), [rows]);
  const shown = useMemo(() => settled.map((id) => byId.get(id)).filter((row) => row && matches(row, filter)), [settled, byId, filter]);
  const lines = linesOf(now);
  return html`<section class="brokers" ref=${list} onPointerEnter=${() => hold(true)} onPointerLeave=${() => hold(false)}>
    ${rows.length > FEW && html`<${Bars} rows=${shown} lines=${lines} label=${`Usage of ${shown.length} brokers, each by its most used resource; the list below says the same`} />`}
    <div class="tools"><label>Show <input type="search" placeholder="name or state" value=${filter} onInput=${(event) => adjust({ filter: event.target.value })} /></label>
      <span class="quiet">${whole(shown.length)} of ${whole(rows.length)}</span>
      <${Lines} lines=${lines} /></div>
    <${Rows} label="Brokers" className="of-brokers" columns=${COLUMNS} items=${shown} keyOf=${(row) => row.id} link=${(row) => linkTo("broker", [row.id])}
      sort=${sort} onSort=${(key) => adjust({ sort: key })} cells=${(row) => cellsOf(row, lines, now.at)} />
  </section>`;
}

const matches = (row, filter) => !filter || row.id.includes(filter) || stateWords(row.state).includes(filter.toLowerCase());

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
    html`<a href=${linkTo("broker", [row.id])} tabindex="-1">${row.id}</a> <${State} state=${row.state} />`,
    html`<${Meter} value=${row.highest} lines=${lines} state=${row.state} />`,
    row.of,
    whole(row.bundles),
    perS(row.msgRate),
    bytesPerS(row.throughput),
    row.reportedAt ? ago(row.reportedAt, at) : "never",
  ];
}

// A bar with the mean and the bound on it, and the figure beside it.
export function Meter({ value, lines = {}, state = "active" }) {
  const kind = state !== "active" ? "resting" : value > CAPACITY ? "over" : value > 85 ? "hot" : "";
  const at = (share) => ({ left: `${Math.min(share, 100)}%` });
  return html`<div class="meter" data-kind=${kind}>
    <div class="track"><div class="fill" style=${{ width: `${Math.min(Math.max(value ?? 0, 0), 100)}%` }}></div>
      ${lines.lowerBound !== null && lines.lowerBound !== undefined && html`<i class="bound" style=${at(lines.lowerBound)}></i>`}
      ${lines.mean !== null && lines.mean !== undefined && html`<i class="mean" style=${at(lines.mean)}></i>`}</div>
    <span class="number">${kind === "over" ? "✖ " : kind === "hot" ? "▲ " : ""}${percent(value)}</span>
  </div>`;
}
