// What the node tells by itself: the fleet, decisions and operations, and whether the node can be heard.

import { Refusal } from "./api.js";
import { follow } from "./stream.js";
import { token } from "./token.js";
import { Cell } from "./ui.js";

const KEPT = 500;
const PROBE_MS = 3000;

export const fleet = new Cell(null);
// Newest first.
export const decisions = new Cell([]);
export const operations = new Cell([]);
// state: connecting, live or lost. `heardAt`: when the node was last heard. `nextAt`: when it is tried again.
export const connection = new Cell({ state: "connecting", heardAt: null, nextAt: null, problem: null });

// How often the node was heard again after it had been lost.
export const returns = new Cell(0);

let retry = () => {};
export const retryNow = () => retry();

const isSame = (a, b) => a.epoch === b.epoch && a.sequence === b.sequence;

function takeDecision(entry) {
  const others = decisions.value.filter((each) => !isSame(each, entry)); // one that happened again comes again
  decisions.value = [entry, ...others].slice(0, KEPT);
}

const TAKE = {
  fleet: (data) => (fleet.value = data),
  decision: takeDecision,
  operation: (data) => (operations.value = [data, ...operations.value].slice(0, KEPT)),
};

const retryIfLost = () => connection.value.state === "lost" && retry();

// What one token has shown is not for the next.
function forget() {
  fleet.value = null;
  decisions.value = operations.value = [];
  retry();
}

// Continues with another node that answers, after this one has not answered twice; but not behind a proxy, which finds
// another node itself, nor while somebody fills a dialog in.
async function continueElsewhere() {
  const nodes = fleet.value?.nodes ?? [];
  if (!nodes.includes(location.host) || document.querySelector("dialog[open]")) return;
  for (const node of nodes.filter((each) => each !== location.host)) {
    const url = `${location.protocol}//${node}`;
    try {
      await fetch(`${url}/healthz`, { mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(PROBE_MS) });
      if (connection.value.state === "lost") location.replace(`${url}/${location.hash}`);
      return;
    } catch {
      // the next one
    }
  }
}

export function startLive() {
  let failures = 0;
  const tell = {
    open() {
      failures = 0;
      if (connection.value.state === "lost") returns.value += 1;
      connection.value = { state: "live", heardAt: Date.now(), nextAt: null, problem: null };
    },
    anything: () => (connection.value = { ...connection.value, heardAt: Date.now() }),
    event: ({ type, data }) => TAKE[type]?.(JSON.parse(data)),
    lost(problem, nextAt) {
      failures += 1;
      const refusal = problem instanceof Refusal ? problem : null;
      connection.value = { ...connection.value, state: "lost", nextAt, problem: refusal };
      if (failures > 1 && !refusal?.status) continueElsewhere();
    },
  };
  retry = follow("/loadbalance/v1/live", tell);
  token.watch(forget);
  addEventListener("online", retryIfLost);
  document.addEventListener("visibilitychange", () => document.hidden || retryIfLost());
}
