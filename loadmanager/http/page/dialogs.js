// Dialogs: a modal one of the browser's own, so that the focus stays in it and comes back, and Escape closes it.

import { headingOf, hintOf } from "./api.js";
import { asked, keepToken } from "./token.js";
import { Cell, html, useCell, useLayoutEffect, useRef, useState } from "./ui.js";

// The dialog that is open: a component with `close`, or null.
const open = new Cell(null);
export const show = (Content) => (open.value = Content);
export const close = () => (open.value = null);

export function Modal({ title, onClose, children, wide = false }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onClose=${onClose}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
  </dialog>`;
}

export function Problem({ problem }) {
  if (!problem) return null;
  const { status } = problem;
  return html`<div class="problem" role="alert" data-status=${status}>
    <strong>${headingOf(problem)}</strong><span class="code">${status || "no status"}</span>
    <p>${problem.message}</p>
    ${hintOf(problem) && html`<p class="quiet">${hintOf(problem)}</p>`}
  </div>`;
}

function SignIn({ why }) {
  const [value, setValue] = useState("");
  const dismiss = () => (asked.value = null);
  const enter = (event) => {
    event.preventDefault();
    keepToken(value.trim());
  };
  return html`<${Modal} title="Sign in" onClose=${dismiss}>
    <form onSubmit=${enter}>
      ${why && html`<p>${why}</p>`}
      <label>Token <input type="password" autocomplete="off" spellcheck="false" required autofocus value=${value}
        onInput=${(event) => setValue(event.target.value)} /></label>
      <p class="quiet">It is kept in this tab until you close it or sign out. <code>loadmanager token create</code> makes one.</p>
      <div class="buttons"><button type="button" onClick=${dismiss}>Cancel</button><button class="primary">Sign in</button></div>
    </form>
  <//>`;
}

export function Dialogs() {
  const Content = useCell(open);
  const why = useCell(asked);
  return html`${Content && html`<${Content} close=${close} />`}${why !== null && html`<${SignIn} why=${why} />`}`;
}
