// The token that an operator has entered: kept for this tab and no longer.

import { BASE } from "./base.js";
import { Cell } from "./ui.js";

const KEY = `loadmanager.token${BASE}`; // several clusters may be behind one proxy

export const token = new Cell(sessionStorage.getItem(KEY) ?? "");
// Whether somebody is asked for a token, and why.
export const asked = new Cell(null);

export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  asked.value = null;
  token.value = value;
}

export function headersWithToken(headers = {}) {
  return token.value ? { ...headers, Authorization: `Bearer ${token.value}` } : headers;
}
