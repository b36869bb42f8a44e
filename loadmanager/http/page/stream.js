// Server-sent events read with fetch, since EventSource cannot send a token.

import { send } from "./api.js";

const SILENCE_MS = 25_000; // the node says something every 10 s
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

// Calls `on(event)` with {type, id, data} for each event of `lines`' stream, as they come.
export function eventReader(on) {
  let rest = "";
  let event = { type: "message", id: null, data: [] };
  function line(text) {
    if (text === "") {
      if (event.data.length) on({ ...event, data: event.data.join("\n") });
      event = { type: "message", id: null, data: [] };
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return; // a comment
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.type = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data.push(value);
  }
  return (chunk) => {
    const lines = (rest + chunk).split(/\r?\n/);
    rest = lines.pop();
    for (const each of lines) line(each);
  };
}

const later = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

// One connection, until it ends or nothing was heard for `SILENCE_MS`.
async function listen(path, lastId, heard, signal) {
  const aborter = new AbortController();
  const stop = () => aborter.abort();
  signal.addEventListener("abort", stop, { once: true });
  let watchdog = setTimeout(stop, SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
    const response = await send("GET", path, { headers, signal: aborter.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const read = eventReader(heard.event);
    heard.open();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(stop, SILENCE_MS);
      read(value);
      heard.anything();
    }
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
  }
}

// Follows the stream for good, and connects again after it was lost: at once, then ever more slowly.
// `tell`: open(), event(e), anything(), lost(problem or null, the moment of the next attempt). Returns what begins anew.
export function follow(path, tell) {
  let lastId = null;
  let pause = FIRST_PAUSE_MS;
  let turn = new AbortController();
  const heard = {
    open: tell.open,
    anything: tell.anything,
    event(event) {
      pause = FIRST_PAUSE_MS;
      if (event.id !== null) lastId = event.id;
      tell.event(event);
    },
  };
  async function run() {
    for (;;) {
      let problem = null;
      turn = new AbortController();
      try {
        await listen(path, lastId, heard, turn.signal);
      } catch (error) {
        problem = error;
      }
      if (turn.signal.aborted) continue;
      const ms = pause * (0.75 + Math.random() / 2);
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      tell.lost(problem, Date.now() + ms);
      await later(ms, turn.signal);
    }
  }
  run();
  return () => turn.abort();
}
