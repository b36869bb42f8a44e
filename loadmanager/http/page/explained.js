// The parts of explanations: a rule with its sentence, the numbers behind it, and what would have to change.

import { bytesPerS, percent, perS, said, whole, words } from "./format.js";
import { BrokerLink, Chip, Facts } from "./parts.js";
import { html } from "./ui.js";

// A rule that decided; its numbers on demand.
export function Explained({ rule, kind = "" }) {
  if (!rule) return null;
  const numbers = Object.entries(rule.why ?? {}).map(([key, value]) => [words(key), said(value)]);
  return html`<div class="rule" data-kind=${kind}>
    <p>${rule.sentence}${rule.isPreference && html` <${Chip}>given up rather than leave it without a broker<//>`}</p>
    <${Change} rule=${rule} />
    ${
      numbers.length > 0 &&
      html`<details><summary>Figures</summary>
        <${Facts} facts=${[...numbers, ["rule", html`<code>${rule.reason}</code>`]]} />
      </details>`
    }
  </div>`;
}

export const Change = ({ rule: { change } }) =>
  change && html`<p class="change"><strong>To change it:</strong> ${change}</p>`;

export const Verdicts = ({ title, rules }) =>
  rules.length
    ? html`<details><summary>${title}</summary>${rules.map((each) => html`<${Explained} rule=${each} />`)}</details>`
    : null;

export const Fact = ({ name, value }) => html`<p class="fact"><span class="quiet">${name}</span> ${value}</p>`;

// How brokers stand in what strategies compare, side by side. `roles`: what each is here, by broker. Without a namespace,
// the last column is left out.
export function Standings({ standings, roles = {}, hasNamespace = true }) {
  if (!standings.length) return null;
  const columns = HEADINGS.length - (hasNamespace ? 0 : 1);
  return html`<div class="scroll"><table class="standings">
    <caption class="hidden">How the brokers stand</caption>
    <thead><tr>${HEADINGS.slice(0, columns).map((each) => html`<th scope="col">${each}</th>`)}</tr></thead>
    <tbody>${standings.map((each) => html`<${Standing} of=${each} role=${roles[each.brokerId]} columns=${columns} />`)}</tbody>
  </table></div>`;
}

const HEADINGS = ["Broker", "Usage", "Messages", "Throughput", "Topics", "Bundles", "of the namespace"];

function Standing({ of: { brokerId, usagePercent, msgRatePerS, mibPerS, topics, bundles, bundlesOfNamespace }, role, columns }) {
  const figures = [percent(usagePercent), perS(msgRatePerS), bytesPerS(mibPerS * 1024 ** 2), ...[topics, bundles, bundlesOfNamespace].map(whole)];
  return html`<tr>
    <th scope="row"><${BrokerLink} name=${brokerId} /> ${role && html`<${Chip}>${role}<//>`}</th>
    ${figures.slice(0, columns - 1).map((each) => html`<td>${each}</td>`)}
  </tr>`;
}
