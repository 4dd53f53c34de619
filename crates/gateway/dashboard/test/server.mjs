// The gateway's admin listener, made up: the answers of `preview/`, as the test changes them, below any path.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
export const preview = (name) => JSON.parse(readFileSync(join(ROOT, "preview", `${name}.json`), "utf8"));

export const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
  + "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const TYPES = { html: "text/html; charset=utf-8", css: "text/css", js: "text/javascript", svg: "image/svg+xml" };
const MADE_FOR = preview("history").at_ms;

/** The last hour of the paused line: nobody is admitted any more. */
const HELD_UP = { samples: Object.fromEntries(Object.entries(preview("history").samples).map(([name, values]) => [name, values.map((value, at) => {
  const stopped = at > 60;
  if (value === null) return null;
  if (name === "waiting") return Math.round(stopped ? 300 + (at - 60) * 10.85 : 300);
  if (name === "seats") return 50;
  if (name === "held") return 50 - (stopped ? 0 : at % 3);
  return stopped ? { admitted_per_minute: 0, entered_per_minute: 24, completed_per_minute: 6, newcomer_eta_ms: null }[name] : Math.round(value / 20);
})])) };

/** All moments of an answer as long ago as they were when it was made up. */
function moved(value, by) {
  if (Array.isArray(value)) return value.map((it) => moved(it, by));
  if (value?.constructor !== Object) return value;
  return Object.fromEntries(Object.entries(value).map(([name, it]) =>
    [name, name.endsWith("at_ms") && Number.isFinite(it) ? it + by : moved(it, by)]));
}

export class Dashboard {
  asked = []; // "GET lines/x", in order
  posts = []; // [path, body, headers]
  head = {}; // laid over that of each answer
  over = {}; // by path: a function from the made-up answer to another
  down = false; // no answer at all
  answers = {}; // by path of a change: [status, body], taken one by one

  /** `below`: the path of a proxy before it. */
  constructor({ below = "/", now = Date.now() } = {}) {
    this.below = below;
    this.by = now - MADE_FOR;
    this.server = createServer((request, response) => this.answer(request, response));
  }

  async listen(port = 0) {
    await new Promise((done) => this.server.listen(port, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}${this.below}`;
    return this;
  }

  close() {
    this.server.closeAllConnections();
    return new Promise((done) => this.server.close(done));
  }

  allow(changes = true) {
    this.head.changes = changes;
    return this;
  }

  answer(request, response) {
    const url = new URL(request.url, "http://x");
    const end = (code, type, body) => response.writeHead(code, {
      "content-type": type, "cache-control": "no-store", "content-security-policy": CSP, "x-content-type-options": "nosniff",
    }).end(body);
    if (!url.pathname.startsWith(this.below)) return end(404, "text/plain", "not below this path");
    const path = url.pathname.slice(this.below.length);
    if (!path.startsWith("api/")) {
      try {
        const file = path === "" ? "index.html" : path;
        return end(200, TYPES[file.split(".").pop()], readFileSync(join(ROOT, file)));
      } catch {
        return end(404, "text/plain", "no such file");
      }
    }
    if (this.down) return request.socket.destroy();
    const name = path.slice("api/".length);
    this.asked.push(`${request.method} ${name}`);
    const json = (code, body) => end(code, code < 400 ? "application/json" : "application/problem+json", JSON.stringify(body));
    if (request.method !== "POST") {
      const made = this.made(name, url.searchParams);
      if (!made) return json(404, { code: "line_not_found", detail: "there is no such line", status: 404 });
      return json(200, this.finished(name, made));
    }
    let text = "";
    request.on("data", (chunk) => { text += chunk; });
    request.on("end", () => {
      const body = JSON.parse(text);
      this.posts.push([name, body, request.headers]);
      const [code, answer] = this.answers[name]?.shift() ?? [200, this.changed(name, body)];
      json(code, code < 400 ? this.finished(name, answer) : answer);
    });
  }

  finished(name, made) {
    const over = this.over[name] ?? ((it) => it);
    const answer = over(moved(made, this.by));
    if (answer.may && !this.head.changes) answer.may = [];
    return { ...answer, head: { ...moved(preview("overview").head, this.by), ...this.head } };
  }

  made(name, query) {
    const [first, line, more] = name.split("/").map(decodeURIComponent);
    if (first !== "lines") return name === "overview" ? this.overview(query) : preview(name);
    const known = preview("overview").lines.find((it) => it.line === line);
    if (!known) return null;
    const paused = preview("line-paused");
    if (more) return { ...preview({ findings: "closer" }[more] ?? more), line, ...(more === "history" && line === paused.line.line ? HELD_UP : {}) };
    if (line === paused.line.line) return paused;
    const made = preview("line");
    return line === made.line.line ? made : { ...made, line: known, findings: [] };
  }

  overview(query) {
    const made = preview("overview");
    const filter = query.get("filter")?.toLowerCase() ?? "";
    const fits = made.lines.filter((it) => it.line.includes(filter) || Object.entries(it.labels).some(([name, value]) => `${name}=${value}`.toLowerCase().includes(filter)));
    if (query.get("sort") === "name") fits.sort((a, b) => (a.line < b.line ? -1 : 1));
    return { ...made, totals: { ...made.totals, lines: fits.length }, lines: fits.slice(0, Number(query.get("first"))) };
  }

  changed(name, body) {
    if (name.endsWith("/why")) return body.token === 1987 ? preview("why-gone") : preview("why");
    if (name.endsWith("/call-next")) return { admitted: [{ lane: "normal", token: 2037 }, { lane: "normal", token: 2038 }].slice(0, body.n) };
    return name.endsWith("/kick") ? { kicked: 1 } : { version: 24_730 };
  }
}
