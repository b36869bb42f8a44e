// Every change that the page can ask for: what it says will happen, and what it sends.

import { OURS, brokerPath, bundlePath, namespaceBundlePath } from "./api.js";
import { ask } from "./asking.js";

const REASON = { name: "reason", label: "Reason, for those who see it", maxlength: 1000 };
const put = { method: "PUT" };
const del = { method: "DELETE" };

// The whole balancer

export const freezeAll = () =>
  ask({
    ...put,
    title: "Freeze the balancer",
    verb: "Freeze",
    isGrave: true,
    path: `${OURS}/freeze`,
    fields: [REASON],
    body: ({ reason }) => ({ reason }),
    sentences: [
      "Nothing is shed, split or merged by itself until you lift it, also after a change of leader.",
      "A plan that is being executed stops before its next step.",
      "Lookups go on; bundles of brokers that die still get new owners.",
    ],
  });

export const thawAll = () =>
  ask({
    ...del,
    title: "Lift the freeze",
    verb: "Lift it",
    path: `${OURS}/freeze`,
    sentences: "The balancer sheds, splits and merges by itself again, from its next round on.",
  });

export const startDryRun = () =>
  ask({
    ...put,
    title: "Begin a dry run",
    verb: "Begin",
    path: `${OURS}/dry-run`,
    sentences:
      "Shedding goes on to decide, and what it would have moved is shown among the decisions; nothing is moved by it.",
  });

export const endDryRun = () =>
  ask({
    ...del,
    title: "End the dry run",
    verb: "End it",
    path: `${OURS}/dry-run`,
    sentences: "What shedding decides is carried out again, from its next round on.",
  });

export const liftBreaker = () =>
  ask({
    ...del,
    title: "Lift the breaker",
    verb: "Lift it",
    path: `${OURS}/churn/breaker`,
    sentences: [
      "Shedding goes on, which was stopped because bundles kept returning.",
      "If nothing else has changed, they may return again.",
    ],
  });

// A broker

export const drain = (broker, then) =>
  ask({
    ...put,
    title: `Drain ${broker}`,
    verb: "Drain",
    isGrave: true,
    path: `${brokerPath(broker)}/drain`,
    then,
    done: "The drain has begun",
    sentences: [
      `Every bundle of ${broker} is given to another broker, within the limits on unloads; their clients connect again.`,
      "It is given no bundle until the drain is stopped, also after a change of leader.",
      "Frozen bundles leave, too; pinned ones come back when the drain is stopped. What no other broker may own stays, and the drain says why.",
    ],
  });

export const stopDrain = (broker, then) =>
  ask({
    ...del,
    title: `Stop the drain of ${broker}`,
    verb: "Stop it",
    path: `${brokerPath(broker)}/drain`,
    then,
    sentences: [
      "It may be given bundles again. Unloads that have begun are finished; what has left does not come back by itself.",
    ],
  });

export const exclude = (broker, then) =>
  ask({
    ...put,
    title: `Exclude ${broker}`,
    verb: "Exclude",
    then,
    path: `${brokerPath(broker)}/exclusion`,
    sentences: "It keeps what it owns and is given no new bundle until this is lifted.",
  });

export const include = (broker, then) =>
  ask({
    ...del,
    title: `Include ${broker} again`,
    verb: "Include",
    then,
    path: `${brokerPath(broker)}/exclusion`,
    sentences: "It may be given bundles again.",
  });

export const holdOff = (broker, then) =>
  ask({
    ...put,
    title: `Hold ${broker} off`,
    verb: "Hold off",
    then,
    path: `${brokerPath(broker)}/hold-off`,
    fields: [{ name: "forS", label: "For so many seconds", type: "number", min: 1, max: 86400, value: 120 }],
    body: ({ forS }) => ({ forS: Number(forS) }),
    sentences: ({ forS }) => [
      `If it goes away, its bundles wait for it, at most ${forS} s from now, instead of going to others: for a restart.`,
      "Meanwhile their topics are not served.",
    ],
  });

export const letGo = (broker, then) =>
  ask({
    ...del,
    title: `Hold ${broker} off no more`,
    verb: "Let go",
    then,
    path: `${brokerPath(broker)}/hold-off`,
    sentences: "If it is away, its bundles go to others at once.",
  });

// A bundle

export const unload = (bundle, owner, then) =>
  ask({
    ...put,
    title: "Unload the bundle",
    verb: "Unload",
    isGrave: true,
    path: `${namespaceBundlePath(bundle)}/unload`,
    then,
    done: "It was released",
    sentences: [
      `${owner ?? "Its owner"} closes all topics of ${bundle}; their clients connect again.`,
      "The next lookup decides who gets it, which may be the same broker.",
    ],
  });

export const transfer = (bundle, owner, to, then) =>
  ask({
    ...put,
    title: "Transfer the bundle",
    verb: "Transfer",
    isGrave: true,
    then,
    done: "It has gone there",
    fields: [{ name: "destination", label: "To", type: "broker", without: owner, value: to ?? "" }],
    path: ({ destination }) =>
      `${namespaceBundlePath(bundle)}/unload?destinationBroker=${encodeURIComponent(destination)}`,
    sentences: ({ destination }) => [
      `${owner ?? "Its owner"} closes all topics of ${bundle}; their clients connect again, to ${destination || "the broker you choose"}.`,
      "Shedding may move it away again later; pin it if it is to stay.",
    ],
  });

export const cancelUnload = (bundle, then) =>
  ask({
    ...del,
    title: "Cancel the unload",
    verb: "Cancel it",
    path: `${bundlePath(bundle)}/unload`,
    then,
    sentences: `The owner keeps ${bundle}, unless it has let go already.`,
  });

export const pin = (bundle, owner, then) =>
  ask({
    ...put,
    title: "Pin the bundle",
    verb: "Pin",
    path: `${bundlePath(bundle)}/pin`,
    then,
    fields: [{ name: "broker", label: "To", type: "broker", value: owner ?? "" }],
    body: ({ broker }) => ({ broker }),
    sentences: ({ broker }) => [
      broker && broker !== owner
        ? `It is brought to ${broker}: its topics are closed and their clients connect again.`
        : "It stays where it is.",
      "Nothing moves it from there by itself until the pin is removed; a drain does, and it comes back afterwards.",
    ],
  });

export const unpin = (bundle, then) =>
  ask({
    ...del,
    title: "Remove the pin",
    verb: "Remove",
    path: `${bundlePath(bundle)}/pin`,
    then,
    sentences: "The bundle may be on any broker again; nothing moves at once.",
  });

export const freezeBundle = (bundle, then) =>
  ask({
    ...put,
    title: "Freeze the bundle",
    verb: "Freeze",
    path: `${bundlePath(bundle)}/freeze`,
    then,
    fields: [REASON],
    body: ({ reason }) => ({ reason }),
    sentences: "Nothing moves, splits or merges it by itself until this is lifted; commands still do.",
  });

export const thawBundle = (bundle, then) =>
  ask({
    ...del,
    title: "Lift the bundle's freeze",
    verb: "Lift it",
    path: `${bundlePath(bundle)}/freeze`,
    then,
    sentences: "It may be moved by itself again.",
  });

export const split = (bundle, then) =>
  ask({
    ...put,
    title: "Split the bundle",
    verb: "Split",
    path: `${namespaceBundlePath(bundle)}/split`,
    then,
    sentences: [
      "It becomes two bundles or more, which stay with the owner; open topics stay open.",
      "If there is no place to cut, nothing happens, and the decisions say why.",
    ],
  });

// A plan

export const execute = (plan, isFrozen, then) =>
  ask({
    method: "POST",
    title: "Execute the plan",
    verb: "Execute",
    isGrave: true,
    then,
    done: "The plan was carried out",
    path: `${OURS}/plans/${plan.hash}/execute${isFrozen ? "?evenIfFrozen=true" : ""}`,
    sentences: [
      `Exactly these ${plan.steps.length} moves are carried out, within the limits on unloads; ${plan.effect.clientsDisturbed} clients connect again.`,
      "If the cluster has changed so that a step fits no more, it stops there, and what is done stays done.",
      ...(isFrozen ? ["The balancer is frozen: the plan is carried out nevertheless."] : []),
    ],
  });

export const stopPlan = (plan, then) =>
  ask({
    ...put,
    title: "Stop the plan",
    verb: "Freeze and stop",
    isGrave: true,
    then,
    path: `${OURS}/freeze`,
    body: { reason: `plan ${plan.hash.slice(0, 12)} stopped from the page` },
    sentences: [
      "The balancer is frozen, so the plan stops before its next step; the step under way is finished.",
      "Nothing is shed, split or merged by itself until you lift the freeze, at the top of the fleet.",
    ],
  });
