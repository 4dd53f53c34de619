// Asks the gateway. Every path is relative to the page, which can lie below any path of a proxy.

/** Longer answers count as lost. */
const PATIENCE_MS = 15_000;

/** The gateway, or the cluster, said no. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `HTTP ${status}`);
    this.status = status;
    /** As in the cluster's errors: `version_conflict`, `outcome_unknown`, … */
    this.code = problem.code;
  }
}

/** With a body: a POST. */
export async function ask(path, body) {
  const headers = { accept: "application/json" };
  const request = { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) };
  if (body) {
    request.method = "POST";
    request.body = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(`api/${path}`, request);
  const type = answer.headers.get("content-type") ?? "";
  if (!/^application\/(problem\+)?json\b/.test(type)) {
    const detail = "something between here and the gateway answered instead of it; reload the page to log in again";
    throw new Refused(answer.status, { detail });
  }
  const data = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, data);
  return data;
}

/** Random, also where the page came without TLS and `crypto.randomUUID` is missing. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
