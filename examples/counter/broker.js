// A broker of counters in plain Node (18 or newer), written from docs/broker-contract.md alone: it uses no package.
//
//   node broker.js --agent http://127.0.0.1:8091 --port 8081 --clients 9001 --folder /tmp/counters
//
// Each topic is a counter. A client adds to it (POST) or reads it (GET) at /count?topic=persistent://tenant/namespace/name.
// The counts are in files of the folder, which all brokers share: whoever owns a topic reads it when it opens it. Two
// owners at a time would lose counts; that there is one at most is what the contract is for.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");
const { parseArgs } = require("node:util");
const sleep = require("node:timers/promises").setTimeout;

const { values: options } = parseArgs({
  options: {
    agent: { type: "string", default: "http://127.0.0.1:8091" },
    port: { type: "string", default: "8081" }, // the agent calls here
    clients: { type: "string", default: "9001" },
    folder: { type: "string", default: "counters" },
  },
});

const STARTED_MS = Date.now();
const PAUSE_WITHOUT_LEASE_MS = 100;
const RESOLUTION_MS = 10;
const now = () => os.uptime() * 1_000; // goes on while the process is stopped, and while the machine sleeps

// --- What is open, and what is asked for --------------------------------------------------------------------------

const lease = { incarnation: undefined, validUntil: -Infinity };
const topics = new Map(); // the open ones: { file, count, messagesIn, messagesOut, bytesIn, bytesOut }
const questions = new Map(); // topics whose answer is still to come: { isVoid }
let opened = 0; // how many topics, since the process began
const openings = new Map(); // the same topics: a promise for all who wait

// Rule 1: whoever serves calls this at that very moment. A lease that has lapsed closes everything.
function hasLease() {
  if (now() < lease.validUntil) return true;
  closeAll();
  return false;
}

function closeAll() {
  for (const question of questions.values()) question.isVoid = true;
  topics.clear();
}

// --- What the broker asks of its agent ------------------------------------------------------------------------------

// The answer with its incarnation as text (a number of JavaScript is exact up to 2^53 only); undefined if there is none.
async function ask(question) {
  try {
    const url = `${options.agent}/loadmanager/v1/${question}`;
    const answer = await fetch(url, { redirect: "manual", signal: AbortSignal.timeout(10_000) });
    const text = await answer.text();
    if (answer.status !== 200) return undefined;
    const incarnation = /"incarnation"\s*:\s*(\d+)/.exec(text);
    return incarnation ? { ...JSON.parse(text), incarnation: incarnation[1] } : undefined;
  } catch {
    return undefined; // not reached, too late, cut off, or no JSON
  }
}

async function keepLease() {
  for (;;) {
    const asked = now(); // before the question: an answer may lie in the socket for long
    const answer = await ask("lease");
    let pause = PAUSE_WITHOUT_LEASE_MS;
    if (answer !== undefined && Number.isInteger(answer.validForMs)) {
      hasLease();
      if (answer.incarnation !== lease.incarnation) closeAll(); // rule 4
      lease.incarnation = answer.incarnation;
      lease.validUntil = asked + answer.validForMs - RESOLUTION_MS;
      pause = Math.min(answer.validForMs / 3, 1_000);
    }
    await sleep(pause);
  }
}

// Rule 2: the topic if this broker owns it. Those who come while it is asked for wait for the same answer.
async function find(name) {
  if (!hasLease()) return undefined;
  if (!topics.has(name)) {
    if (!openings.has(name)) openings.set(name, open(name).finally(() => openings.delete(name)));
    await openings.get(name);
  }
  return hasLease() ? topics.get(name) : undefined;
}

async function open(name) {
  for (let tries = 0; tries < 5; tries++) {
    const question = { isVoid: false };
    questions.set(name, question);
    const answer = await ask(`owner?topic=${encodeURIComponent(name)}`);
    questions.delete(name);
    if (answer === undefined || !hasLease()) return;
    if (question.isVoid) continue; // rule 3: whatever it says, ask again
    if (answer.owned === true && answer.incarnation === lease.incarnation) {
      opened += 1;
      topics.set(name, { ...read(name), messagesIn: 0, messagesOut: 0, bytesIn: 0, bytesOut: 0 });
    }
    return;
  }
}

// --- What is served ---------------------------------------------------------------------------------------------------

function read(name) {
  const file = path.join(options.folder, encodeURIComponent(name));
  return { file, count: fs.existsSync(file) ? Number(fs.readFileSync(file, "utf8")) : 0 };
}

// Everything from the look at the lease to the write is one step, between which nothing else of this process happens.
async function serveClient(request, response) {
  const name = new URL(request.url, "http://broker").searchParams.get("topic") ?? "";
  const topic = await find(name);
  if (topic === undefined || !hasLease() || topics.get(name) !== topic) {
    return send(response, 421, { reason: `${name}: not served here, look it up` });
  }
  if (request.method === "POST") {
    fs.writeFileSync(`${topic.file}.new`, String(topic.count + 1));
    fs.renameSync(`${topic.file}.new`, topic.file); // whole or not at all, if the process is killed
    topic.count += 1;
    topic.messagesIn += 1;
    topic.bytesIn += 1;
  }
  if (!hasLease()) return send(response, 503, { reason: "the lease lapsed meanwhile: nobody knows whether it was counted" });
  topic.messagesOut += 1;
  topic.bytesOut += send(response, 200, { topic: name, count: topic.count });
}

function send(response, status, body) {
  const text = body === undefined ? "" : JSON.stringify(body);
  response.writeHead(status, { "content-type": "application/json" }).end(text);
  return text.length;
}

// --- What the broker answers to its agent -----------------------------------------------------------------------------

function statistics() {
  hasLease();
  return {
    pid: process.pid,
    soleProcess: true, // with its end nobody serves: its bundles are given away at once
    version: "counter-1",
    startTimestamp: STARTED_MS,
    monotonicS: now() / 1_000,
    topics: [...topics].map(([topic, { messagesIn, messagesOut, bytesIn, bytesOut }]) => {
      return { topic, messagesIn, messagesOut, bytesIn, bytesOut, producers: 0, consumers: 0 };
    }),
    opening: [...openings.keys()],
    opened,
  };
}

function unload(names) {
  for (const name of names) {
    if (questions.has(name)) questions.get(name).isVoid = true; // rule 3, before anything else
    topics.delete(name); // what was counted is in its file already: there is nothing to wait for
  }
}

async function serveAgent(request, response) {
  const { pathname } = new URL(request.url, "http://broker");
  if (request.method === "GET" && pathname === "/loadmanager/v1/stats") return send(response, 200, statistics());
  if (request.method === "POST" && pathname === "/loadmanager/v1/unload") {
    let body = "";
    for await (const chunk of request) body += chunk;
    unload(JSON.parse(body).topics);
    return send(response, 204);
  }
  return send(response, 404, { reason: `no such path: ${pathname}` });
}

// --- The process ------------------------------------------------------------------------------------------------------

function listen(port, serve) {
  const server = http.createServer((request, response) => {
    serve(request, response).catch((error) => send(response, 500, { reason: String(error) }));
  });
  server.listen(Number(port), "127.0.0.1");
}

process.on("SIGTERM", () => {
  closeAll();
  process.exit(0);
});

fs.mkdirSync(options.folder, { recursive: true });
listen(options.port, serveAgent);
listen(options.clients, serveClient);
keepLease();
