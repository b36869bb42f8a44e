// The parts of explanations: a rule with its sentence, the numbers behind it, and what would have to change.

import { percent, perS, said, short, whole, words } from "./format.js";
import { linkTo } from "./route.js";
import { html } from "./ui.js";

// A rule that decided; its numbers on demand.
export function Explained({ rule, kind = "" }) {
  if (!rule) return null;
  const numbers = Object.entries(rule.why ?? {});
  return html`<div class="rule" data-kind=${kind}>
    <p>${rule.sentence}${rule.isPreference ? html` <span class="chip">given up rather than leave it without a broker</span>` : ""}</p>
    ${rule.change && html`<p class="change"><strong>What would have to change:</strong> ${rule.change}</p>`}
    ${numbers.length > 0 && html`<details><summary>The numbers</summary><dl class="numbers">${numbers.map(([key, value]) => html`<dt>${words(key)}</dt><dd>${said(value)}</dd>`)}<dt>rule</dt><dd><code>${rule.reason}</code></dd></dl></details>`}
  </div>`;
}

export const Verdicts = ({ title, rules }) => (rules.length ? html`<details><summary>${title}</summary>${rules.map((each) => html`<${Explained} rule=${each} />`)}</details>` : null);

export const Fact = ({ name, value }) => html`<p class="fact"><span class="quiet">${name}</span> ${value}</p>`;

// How brokers stand in what strategies compare, side by side. `roles`: what each is here, by broker.
export function Standings({ standings, roles = {} }) {
  if (!standings.length) return null;
  return html`<div class="scroll"><table class="standings"><caption class="hidden">How the brokers stand</caption>
    <thead><tr><th scope="col">Broker</th><th scope="col">Usage</th><th scope="col">Messages</th><th scope="col">MiB/s</th><th scope="col">Topics</th><th scope="col">Bundles</th><th scope="col">of the namespace</th></tr></thead>
    <tbody>${standings.map((each) => html`<tr><th scope="row"><a href=${linkTo("broker", [each.brokerId])}>${each.brokerId}</a> ${roles[each.brokerId] && html`<span class="chip">${roles[each.brokerId]}</span>`}</th>
      <td>${percent(each.usagePercent)}</td><td>${perS(each.msgRatePerS)}</td><td>${short(each.mibPerS)}</td><td>${whole(each.topics)}</td><td>${whole(each.bundles)}</td><td>${whole(each.bundlesOfNamespace)}</td></tr>`)}</tbody></table></div>`;
}
