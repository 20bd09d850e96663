/** Calls of the API: one way to ask, one shape of error, never anywhere but this server. */
import { readJson, writeJson } from "../text/json.js";

/** An error of the server, or `code` `unreachable`. */
export class ApiError extends Error {
  /** @param {number} status @param {{code?: string, message?: string, hint?: string, details?: any}} body */
  constructor(status, body) {
    super(body.message || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code || "unknown";
    this.hint = body.hint || "";
    this.details = body.details ?? null;
  }
}

/** What the user can do about it; the server's own message is for programs. */
export const SHUT = { code: "request.unauthorized", message: "This browser is not let in any more.", hint: "Open the link that `fanfold serve` printed when it was started; every start prints one." };

/** @param {string} method @param {string} path @param {unknown} [body] @param {AbortSignal} [signal] */
async function ask(method, path, body, signal) {
  /** @type {Record<string, string>} */
  const headers = { "X-Fanfold": "1", Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = freshKey();
  let answer;
  try {
    answer = await fetch(`/api${path}`, {
      method, headers, signal, credentials: "same-origin",
      body: body === undefined ? undefined : writeJson(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, {
      code: "unreachable", message: "The server cannot be reached.",
      hint: "Is `fanfold serve` still running? The page continues by itself when it is back.",
    });
  }
  const text = await answer.text();
  const found = text && (answer.headers.get("content-type") || "").includes("json") ? readJson(text) : text;
  if (answer.status === 401) throw new ApiError(401, SHUT);
  if (!answer.ok) throw new ApiError(answer.status, found?.error || { message: String(found || answer.statusText) });
  return found;
}

function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = (path, signal) => ask("GET", path, undefined, signal);
/** @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export const post = (path, body = {}) => ask("POST", path, body);
/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export const put = (path, body) => ask("PUT", path, body);

/** A step's path as one part of an address. @param {string} path */
export const quoted = (path) => encodeURIComponent(path);

/** @param {string} path @param {Record<string, unknown>} query what is empty is left out */
export function withQuery(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== undefined && value !== null && value !== "") words.set(name, String(value));
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}
