// What stands around every view: the tabs, who leads, whether the balancer works, and whether this node is heard.

import { useAnswer } from "./answers.js";
import { get, headingOf, segments } from "./api.js";
import { show, close, Modal, Problem } from "./dialogs.js";
import { duration } from "./format.js";
import { VIEWS, showHelp } from "./keys.js";
import { connection, fleet, retryNow } from "./live.js";
import { isBundle, linkTo, linkToSubject, route } from "./route.js";
import { switchTheme, theme } from "./theme.js";
import { asked, keepToken, token } from "./token.js";
import { html, useCell, useNow, useState } from "./ui.js";

const OTHERS = 4; // of the other nodes so many are offered
const THEMES = { system: ["◐", "as the system has it"], light: ["☀", "light"], dark: ["☾", "dark"] };

export function Frame({ children }) {
  const { view } = useCell(route);
  const { state } = useCell(connection);
  return html`
    <a class="skip" href="#view" onClick=${toView}>Skip to the view</a>
    <header>
      <a class="brand" href=${linkTo("fleet")}><img src="page/icon.svg" alt="" width="22" height="22" />loadmanager</a>
      <nav aria-label="Views">${VIEWS.map(
        ([name, title]) =>
          html`<a href=${linkTo(name)} aria-current=${name === view ? "page" : undefined}>${title}</a>`,
      )}</nav>
      <${Find} />
      <${Who} />
    </header>
    <${Lost} />
    <main id="view" tabindex="-1" class=${state === "lost" ? "stale" : ""}>${children}</main>`;
}

function toView(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

function Who() {
  const mode = useCell(theme);
  const signedIn = useCell(token) !== "";
  const { state } = useCell(connection);
  const [sign, said] = THEMES[mode] ?? THEMES.system;
  const [sayState, signOut] = [{ live: "live", lost: "lost" }[state] ?? "…", () => keepToken("")];
  return html`<div class="who">
    <span class="pulse" data-state=${state} role="status" title=${`this node is ${state}`}>${sayState}</span>
    <button class="plain" onClick=${signedIn ? signOut : () => (asked.value = "")}>${signedIn ? "Sign out" : "Sign in"}</button>
    <button class="icon" onClick=${switchTheme} aria-label=${`Colours: ${said}; switch`} title=${`colours: ${said} (t)`}>
      ${sign}</button>
    <button class="icon" onClick=${showHelp} aria-label="Keyboard help" title="keyboard (?)">?</button>
  </div>`;
}

// A broker, a bundle, or a topic: where its card is.
async function found(text) {
  const name = text.trim();
  if (isBundle(name)) return linkToSubject(name);
  if (fleet.value?.brokers.id.includes(name)) return linkTo("broker", [name]);
  const topic = /^(?:(persistent|non-persistent):\/\/)?([^/]+\/[^/]+\/.+)$/.exec(name);
  if (!topic) return linkToSubject(name);
  const answer = await get(`/loadbalance/v1/ownership/${topic[1] ?? "persistent"}/${segments(topic[2])}`);
  return linkToSubject(answer.bundle);
}

// Names below a path, as a shell completes them: "" has tenants, "t/" namespaces, and "t/ns/" bundles.
async function namesBelow(path, signal) {
  const parts = path.split("/").slice(0, -1);
  const list = (...below) => get(["/admin/v2", ...below].join("/"), {}, signal);
  if (!parts.length) return (await list("tenants")).map((tenant) => `${tenant}/`);
  if (parts.length === 1) return (await list("namespaces", segments(parts[0]))).map((namespace) => `${namespace}/`);
  if (parts.length > 2) return [];
  const { boundaries } = await list("namespaces", segments(parts.join("/")), "bundles");
  return boundaries.slice(1).map((end, n) => `${path}${boundaries[n]}_${end}`);
}

function Find() {
  const [text, setText] = useState("");
  const brokers = useCell(fleet)?.brokers.id ?? [];
  const path = text && text.slice(0, text.lastIndexOf("/") + 1);
  const { answer } = useAnswer((signal) => (text ? namesBelow(path, signal) : Promise.resolve([])), [path, !text]);
  const near = text ? [...brokers, ...(answer ?? [])].filter((name) => name.includes(text)).slice(0, 12) : [];
  async function find(event) {
    event.preventDefault();
    try {
      const link = (await found(text)) ?? (near.length === 1 ? linkToSubject(near[0]) : null);
      if (link) location.hash = link;
      else say(null);
    } catch (problem) {
      say(problem);
    }
  }
  return html`<form class="find" role="search" onSubmit=${find}>
    <input id="find" type="search" list="names" required autocomplete="off" spellcheck="false"
      placeholder="Broker, bundle or topic  /" aria-label="Find a broker, bundle or topic"
      value=${text} onInput=${(event) => setText(event.target.value)} />
    <datalist id="names">${near.map((name) => html`<option value=${name} />`)}</datalist>
  </form>`;
}

const Forms = () => html`<p>A broker is <code>host:port</code>, a bundle${" "}
  <code>tenant/namespace/0x00000000_0x40000000</code>, a topic <code>tenant/namespace/topic</code>.</p>`;

const say = (problem) =>
  show(
    () => html`<${Modal} title="Not found" onClose=${close}>
      ${problem ? html`<${Problem} problem=${problem} />` : html`<${Forms} />`}
      <div class="buttons"><button autofocus onClick=${close}>Close</button></div>
    <//>`,
  );

// Said above everything while the node is not heard.
function Lost() {
  const { state, heardAt, nextAt, problem } = useCell(connection);
  const nodes = useCell(fleet)?.nodes ?? [];
  const now = useNow();
  if (state !== "lost") return null;
  const next = Math.max(0, Math.ceil((nextAt - now) / 1000));
  const [what, why] = problem?.status ? [headingOf(problem), `${problem.message}. `] : ["This node is not heard", ""];
  const age = heardAt ? `What you see is ${duration((now - heardAt) / 1000)} old` : "Nothing was heard yet";
  const others = nodes.filter((id) => id !== location.host).slice(0, OTHERS);
  return html`<div class="lost" role="alert">
    <p><strong>${what}.</strong> ${why}${age}; tried again ${next ? `in ${next} s` : "now"}.</p>
    <button onClick=${retryNow}>Try now</button>
    ${others.map((id) => html`<a href=${`${location.protocol}//${id}/${location.hash}`}>${id}</a>`)}
  </div>`;
}
