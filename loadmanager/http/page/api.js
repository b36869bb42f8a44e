// Questions and commands to the node that served this page.

import { BASE } from "./base.js";
import { asked, headersWithToken, token } from "./token.js";

// A command or question that was not granted. `status` is 0 when there was no answer at all.
export class Refusal extends Error {
  constructor(status, reason, { retryAfterS = null, requestId = null, answer = null } = {}) {
    super(reason);
    Object.assign(this, { status, reason, retryAfterS, requestId, answer });
  }
}

const HEADINGS = {
  0: "No answer from this node",
  400: "The request cannot be used",
  401: "A token is needed",
  403: "Your role does not allow this",
  404: "There is no such thing",
  409: "It does not fit what is there",
  412: "The name is not one that exists",
  413: "Too large",
  429: "Too many requests",
  500: "A mistake in the service",
  503: "Not possible at the moment",
  504: "Not done in time",
};

export const headingOf = (refusal) => HEADINGS[refusal.status] ?? `Refused (${refusal.status})`;

// What else to say about a refusal: what passes by itself, and what does not.
export function hintOf({ status, retryAfterS, requestId }) {
  const hint =
    status === 0
      ? "The node may have ended, or the network is cut. What was asked may have been done: look before you ask again."
      : status === 403
        ? "Sign in with a token of another role."
        : status === 503
          ? `This passes by itself: ask again${retryAfterS ? ` in ${retryAfterS} s` : ""}.`
          : "";
  return requestId ? `${hint} Request ${requestId}.`.trim() : hint;
}

async function refusalOf(response) {
  const text = await response.text();
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    // not JSON: the text is the reason
  }
  const reason = answer?.reason || text.slice(0, 500) || response.statusText || `status ${response.status}`;
  return new Refusal(response.status, reason, {
    retryAfterS: Number(response.headers.get("Retry-After")) || null,
    requestId: response.headers.get("X-Request-Id"),
    answer,
  });
}

// A response that is fine, or a `Refusal` is thrown. A 401 asks for a token.
export async function send(method, path, { body, signal, headers } = {}) {
  const sent = token.value;
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      signal,
      headers: headersWithToken({ ...headers, ...(body === undefined ? {} : { "Content-Type": "application/json" }) }),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "the connection was refused or broke off");
  }
  if (response.ok) return response;
  const refusal = await refusalOf(response);
  if (refusal.status === 401 && token.value === sent) asked.value = refusal.reason;
  throw refusal;
}

export async function get(path, query = {}, signal = undefined) {
  const asking = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== ""));
  const response = await send("GET", asking.size ? `${path}?${asking}` : path, { signal });
  return response.json();
}

// {status, body}: the body is null when there is none.
export async function command(method, path, body) {
  const response = await send(method, path, { body });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}

export const OURS = "/loadbalance/v1";
export const brokerPath = (broker) => `${OURS}/brokers/${encodeURIComponent(broker)}`;
export const bundlePath = (bundle) => `${OURS}/bundles/${segments(bundle)}`;
export const namespaceBundlePath = (bundle) => `/admin/v2/namespaces/${segments(bundle)}`;
export const segments = (name) => name.split("/").map(encodeURIComponent).join("/");
