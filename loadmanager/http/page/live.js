// What the node tells by itself: the fleet, decisions and operations, and whether the node can be heard.

import { Refusal } from "./api.js";
import { follow } from "./stream.js";
import { token } from "./token.js";
import { Cell } from "./ui.js";

const KEPT = 500;

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

export function startLive() {
  const tell = {
    open() {
      if (connection.value.state === "lost") returns.value += 1;
      connection.value = { state: "live", heardAt: Date.now(), nextAt: null, problem: null };
    },
    anything: () => (connection.value = { ...connection.value, heardAt: Date.now() }),
    event: ({ type, data }) => TAKE[type]?.(JSON.parse(data)),
    lost: (problem, nextAt) =>
      (connection.value = {
        ...connection.value,
        state: "lost",
        nextAt,
        problem: problem instanceof Refusal ? problem : null,
      }),
  };
  retry = follow("/loadbalance/v1/live", tell);
  token.watch(forget);
  addEventListener("online", retryIfLost);
  document.addEventListener("visibilitychange", () => document.hidden || retryIfLost());
}
