// What the keyboard does; `?` shows it.

import { Modal, close, show } from "./dialogs.js";
import { go } from "./route.js";
import { switchTheme } from "./theme.js";
import { html } from "./ui.js";

export const VIEWS = [
  ["fleet", "Fleet"],
  ["heat", "Heat map"],
  ["decisions", "Decisions"],
  ["plans", "Plans"],
  ["drains", "Drains"],
  ["audit", "Audit"],
];

const KEYS = [
  ["1 – 6", "the views, in the order of their tabs"],
  ["/", "find a broker, bundle or topic"],
  ["j, k", "the next and the previous row of a list"],
  ["Enter", "open the row"],
  ["← →", "on the heat map: another column; with Shift: select a time"],
  ["Esc", "on the heat map: select nothing; in a dialog: close it"],
  ["t", "light, dark, or as the system has it"],
  ["?", "this help"],
];

function Help() {
  return html`<${Modal} title="Keyboard" onClose=${close}>
    <dl class="keys">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="buttons"><button autofocus onClick=${close}>Close</button></div>
  <//>`;
}

export const showHelp = () => show(Help);

// The rows of a list are what has data-row; the one that has the focus is the current one.
function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const now = rows.indexOf(document.activeElement);
  rows[now < 0 ? 0 : Math.min(Math.max(now + by, 0), rows.length - 1)]?.focus();
}

const PRESSED = {
  "?": showHelp,
  t: switchTheme,
  j: () => step(1),
  k: () => step(-1),
  "/": () => document.getElementById("find")?.focus(),
};

export function startKeys() {
  addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const view = VIEWS[Number(event.key) - 1];
    const act = view ? () => go(view[0]) : Object.hasOwn(PRESSED, event.key) && PRESSED[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
