// Light or dark: as the system says, unless somebody has chosen.

import { Cell } from "./ui.js";

const KEY = "loadmanager.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const isDark = matchMedia("(prefers-color-scheme: dark)");

export const theme = new Cell(localStorage.getItem(KEY) ?? "system");
// Counts changes of what colours are, for whoever draws on a canvas.
export const palette = new Cell(0);

function apply() {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  palette.value += 1;
}

export function switchTheme() {
  theme.value = NEXT[theme.value] ?? "system";
  localStorage.setItem(KEY, theme.value);
  apply();
}

isDark.addEventListener("change", apply);
apply();

// The colours of the style sheet by name, as they are now: colours(canvas).bar is --bar.
export function colours(element) {
  const style = getComputedStyle(element);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`) });
}
