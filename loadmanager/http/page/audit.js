// Who did what: what operators and programs have changed, from what to what.

import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { moment, said, whole } from "./format.js";
import { operations } from "./live.js";
import { adjust, route } from "./route.js";
import { html, useCell, useMemo } from "./ui.js";

const LIMIT = 500;

export function AuditView() {
  const { text = "" } = useCell(route).query;
  const coming = useCell(operations);
  const { answer, problem, isLoading } = useAnswer((signal) => get(`${OURS}/audit`, { limit: LIMIT }, signal), []);
  const all = useMemo(() => merged(answer?.entries ?? [], coming), [answer, coming]);
  const found = all.filter((each) => `${each.who} ${each.from} ${each.operation} ${each.path} ${each.status}`.toLowerCase().includes(text.toLowerCase()));
  return html`<h1>Audit</h1>
    <div class="tools"><label>Words <input type="search" placeholder="who, where or what" value=${text} onInput=${(event) => adjust({ text: event.target.value })} /></label>
      <span class="quiet" role="status">${whole(found.length)} of ${whole(all.length)}</span></div>
    <${Problem} problem=${problem} />
    ${found.length > 0 && html`<ol class="audit" aria-label="Operations, newest first">${found.map((each) => html`<${Entry} key=${`${each.requestId} ${each.at}`} entry=${each} />`)}</ol>`}
    ${!found.length && !isLoading && !problem && html`<p class="quiet">${all.length ? "None fits." : "Nobody has changed anything that this node knows of."}</p>`}`;
}

function merged(asked, coming) {
  const byKey = new Map([...asked, ...coming].map((each) => [`${each.requestId} ${each.at}`, each]));
  return [...byKey.values()].sort((a, b) => b.at - a.at);
}

function Entry({ entry }) {
  const isRefused = entry.status >= 400;
  return html`<li class="decision" data-row tabindex="0"><details>
    <summary><time datetime=${new Date(entry.at).toISOString()}>${moment(entry.at)}</time>
      <span class="chip" data-acted=${!isRefused}>${isRefused ? "✖" : "✓"} ${entry.status}</span>
      <span class="subject">${entry.who || "anonymous"}</span><span class="sentence"><code>${entry.operation.split(" ")[0]} ${entry.path}</code></span></summary>
    <dl class="numbers"><dt>from</dt><dd>${entry.from}</dd><dt>before</dt><dd><code>${said(entry.before)}</code></dd><dt>after</dt><dd><code>${said(entry.after)}</code></dd>
      <dt>operation</dt><dd><code>${entry.operation}</code></dd><dt>request</dt><dd><code>${entry.requestId}</code></dd>${entry.node && html`<dt>node</dt><dd>${entry.node}</dd>`}</dl>
  </details></li>`;
}
