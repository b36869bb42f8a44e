// Who did what: what operators and programs have changed, from what to what.

import { useAnswer } from "./answers.js";
import { OURS, get } from "./api.js";
import { Problem } from "./dialogs.js";
import { moment, said, whole } from "./format.js";
import { operations } from "./live.js";
import { Facts, Search } from "./parts.js";
import { adjust, route } from "./route.js";
import { html, useCell, useMemo } from "./ui.js";

const LIMIT = 500;
const NONE = "Nobody has changed anything that this node knows of.";

export function AuditView() {
  const { text = "" } = useCell(route).query;
  const coming = useCell(operations);
  const { answer, problem, isLoading } = useAnswer((signal) => get(`${OURS}/audit`, { limit: LIMIT }, signal), []);
  const all = useMemo(() => merged(answer?.entries ?? [], coming), [answer, coming]);
  const found = all.filter((each) =>
    `${each.who} ${each.from} ${each.operation} ${each.path} ${each.status}`.toLowerCase().includes(text.toLowerCase()),
  );
  return html`<h1>Audit</h1>
    <div class="tools">
      <${Search} label="Words" placeholder="who, where or what" value=${text} change=${(value) => adjust({ text: value })} />
      <span class="quiet" role="status">${whole(found.length)} of ${whole(all.length)}</span>
    </div>
    <${Problem} problem=${problem} />
    <ol class="audit" aria-label="Operations, newest first">
      ${found.map((each) => html`<${Entry} key=${keyOf(each)} entry=${each} />`)}
    </ol>
    ${!found.length && !isLoading && !problem && html`<p class="quiet">${all.length ? "None fits." : NONE}</p>`}`;
}

const keyOf = ({ requestId, at }) => `${requestId} ${at}`;

function merged(asked, coming) {
  const byKey = new Map([...asked, ...coming].map((each) => [keyOf(each), each]));
  return [...byKey.values()].sort((a, b) => b.at - a.at);
}

function Entry({ entry }) {
  const isRefused = entry.status >= 400;
  const code = (value) => html`<code>${said(value)}</code>`;
  return html`<li class="decision" data-row tabindex="0"><details>
    <summary>
      <time datetime=${new Date(entry.at).toISOString()}>${moment(entry.at)}</time>
      <span class="chip" data-acted=${!isRefused}>${isRefused ? "✖" : "✓"} ${entry.status}</span>
      <span class="subject">${entry.who || "anonymous"}</span>
      <span class="sentence"><code>${entry.operation.split(" ")[0]} ${entry.path}</code></span>
    </summary>
    <${Facts} facts=${[
      ["from", entry.from],
      ["before", code(entry.before)],
      ["after", code(entry.after)],
      ["operation", code(entry.operation)],
      ["request", code(entry.requestId)],
      [entry.node && "node", entry.node],
    ]} />
  </details></li>`;
}
