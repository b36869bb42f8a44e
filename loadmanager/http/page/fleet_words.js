// What is said of a broker's state, and in which order its resources come.

const STATES = { active: "", held_off: "held off", broker_stuck: "stuck", rejected: "reports rejected", unreadable: "nothing readable" };

export const RESOURCES = [
  ["cpu", "CPU"],
  ["memory", "memory"],
  ["directMemory", "direct memory"],
  ["bandwidthIn", "network in"],
  ["bandwidthOut", "network out"],
];

// Nothing for a broker that takes part as all others do.
export const stateWords = (state) => STATES[state] ?? state ?? "";
